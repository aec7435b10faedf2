"""Stores of sessions: their interface, the operations that change them, and the implementations.

`ephemeral/` keeps sessions in memory, `sqlite/` in one SQLite file, `postgres/` in a PostgreSQL database and needs
psycopg. Only `sqlite/`, `memory/`, `projection/` and `maintenance/` need apsw. May import the domain.
"""
