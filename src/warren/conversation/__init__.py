"""The parts of a conversation as plain values: messages, events, options, records, views, and their JSON.

May import `base`.
"""
