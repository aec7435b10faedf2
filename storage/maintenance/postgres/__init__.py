"""Care for a store in a PostgreSQL database that is in use. All of it is async. Needs no apsw.

May import `warren.storage.postgres`, the plain values of `warren.storage.maintenance`, and the domain.
"""
