"""The load tester: many sessions at once against a runtime or a gateway, measured, and checked to the last row.

May import `warren.transport.embed`, `client` and `http`, and the packages below transport.
"""
