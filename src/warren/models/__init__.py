"""What a model is to the runtime: the provider's interface, the catalog, and the tools that a model may call.

May import `base` and `conversation`.
"""
