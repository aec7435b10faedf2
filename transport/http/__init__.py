"""The HTTP server of the gateway's one port: connections, requests, access rules, settings, the shutdown.

May import `warren.transport.rpc`, and the packages below transport.
"""
