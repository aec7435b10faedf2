"""The door of the one port: who may come in and how often, tokens and JWTs, trusted proxies, and its settings.

May import `rpc`.
"""
