"""The running sessions: turns, sessions, supervisor, the actors of the store and the memory, and tools of the model.

`runtime` opens them in order, `service` has the methods for callers. May import the domain, `warren.mailbox` and
`warren.storage`.
"""
