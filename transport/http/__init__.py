"""HTTP as the gateway and REST share it: the head of a request, who may connect, the stream, the settings, the end.

Imports `warren.transport.rpc` and the layers below.
"""
