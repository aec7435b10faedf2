"""The surfaces through which clients reach the sessions, and the providers of models. Programs begin with `embed`.

May import every other package. Its folders import one another in one direction: `docs/architecture.md` shows the order.
"""
