"""A session: its actor, the conversation that it holds in memory, its inbox, and the messages between sessions.

Imports `warren.actors.turn`, the modules at the top of `warren.actors` that are no part of the service, and the layers
below; not `warren.actors.supervisor`, which it reaches through `directory`.
"""
