"""The supervisor: the registry of sessions, and the rules for which may begin a turn and which leaves memory.

Imports `warren.actors.session`, the modules at the top of `warren.actors` that are no part of the service, and the
layers below.
"""
