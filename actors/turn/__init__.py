"""A turn: the loop of steps, with model calls, tool calls, approvals, compaction and extraction.

May import the modules at the top of `warren.actors` that are no part of the service, and the layers below.
"""
