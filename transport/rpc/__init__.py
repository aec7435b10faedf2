"""JSON-RPC 2.0, whatever carries it: the table of methods, their parameters and results, the peer that serves a client.

Imports `warren.actors` and the layers below, and nothing else of `warren.transport`.
"""
