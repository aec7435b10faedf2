"""JSON-RPC 2.0, whatever carries it: the table of methods, their parameters and results, the peer that serves a client.

May import `warren.transport.providers`, whose catalogue of models one dialect shows, and the packages below transport.
"""
