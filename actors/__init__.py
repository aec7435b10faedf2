"""The running sessions: turns, sessions, supervisor, the actors of the store and the memory, and tools of the model.

`runtime` puts them together, `service` is their face. May import the domain, `warren.mailbox` and `warren.storage`.
"""
