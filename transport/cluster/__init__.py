"""Nodes: runtimes that share a store and pass on calls for sessions that another of them has.

May import `warren.transport.client`, `http` and `rpc`, and the packages below transport.
"""
