"""REST and server-sent events, on the port of the gateway.

May import `warren.transport.http` and `rpc`, and the packages below transport.
"""
