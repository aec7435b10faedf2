"""The events of a session: their log, the fence that numbers them, and watchers of the changes of lists.

May import the domain and storage.
"""
