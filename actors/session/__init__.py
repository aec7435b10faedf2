"""A session: its actor, the conversation that it holds in memory, its inbox, and the messages between sessions.

May import `warren.actors.turn`, the modules at the top of `warren.actors` that are no part of the service, and the
layers below. It must not import `warren.actors.supervisor`: `host` and `mailboxes` are its interfaces to that.
"""
