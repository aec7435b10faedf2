"""Care for a store that is in use: doctor, retention, backups. All of it is synchronous.

May import the other folders of `warren.storage` and the domain.
"""
