"""Models, as the runtime sees them: the provider's interface, the catalog, and the tools that a model may call.

May import `base`, `conversation` and `structured`.
"""
