"""JSON-RPC on the standard streams of this process, one message a line.

May import `warren.transport.rpc`, and the packages below transport.
"""
