"""What a conversation consists of, as plain values: messages, events, options, records, views, and their JSON.

May import `base`.
"""
