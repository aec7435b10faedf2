"""Care for a store that is in use: doctor, retention, versions, backups.

The modules here are for a store in files, and synchronous; those of `postgres/` are for a store in a database. Both
return the plain values of `warren.reports.reports`, `versions` and `plans`.

May import the other folders of `warren.storage` and the domain.
"""
