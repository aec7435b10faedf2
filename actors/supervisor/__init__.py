"""The supervisor: the registry of sessions, and the scheduler, which starts turns and evicts sessions.

May import `warren.actors.session`, the modules at the top of `warren.actors` that are no part of the service, and the
layers below.
"""
