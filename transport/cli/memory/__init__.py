"""`warren memory …`: its commands, the work of each, and the lines of JSON for them."""
