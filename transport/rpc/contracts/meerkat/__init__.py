"""Meerkat's protocol, for the clients of `rkat-rpc`: its parameters, results and events, translated to Warren's.

`dialect.py` is the protocol on one connection, with its table of methods; `methods.py` has those that need no state of
the connection.

May import `warren.transport.rpc`, and everything that package may import.
"""
