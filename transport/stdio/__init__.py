"""JSON-RPC on the standard streams of this process, one message a line.

Imports `warren.transport.rpc` and the layers below.
"""
