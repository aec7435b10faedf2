"""JSON-RPC 2.0 over any channel: the endpoint, the table of methods, their parameters and results.

May import the packages below transport, and `warren.transport.providers`: one dialect lists the models of that package.
"""
