"""JSON-RPC 2.0, whatever carries it: the endpoint, the table of methods, their parameters and results.

May import `warren.transport.providers`, whose catalogue of models one dialect shows, and the packages below transport.
"""
