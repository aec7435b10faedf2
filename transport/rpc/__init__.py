"""JSON-RPC 2.0: the endpoint, the table of methods, their parameters and results, and the standard streams.

May import the packages below transport, and `warren.transport.providers`: one dialect lists the models of that package.
"""
