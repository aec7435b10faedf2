"""HTTP as the gateway and REST share it: the head of a request, who may connect, the stream, the settings, the end.

May import `warren.transport.rpc`, and the packages below transport.
"""
