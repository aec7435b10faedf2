"""The actors that own a resource of the runtime: the store, the memory, the projections and the audit.

May import `warren.actors.events`, `warren.actors.observe`, the loose modules of `warren.actors`, and the layers below.
"""
