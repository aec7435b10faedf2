"""`warren load`: runs of the load tester, and their results."""
