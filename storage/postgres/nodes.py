"""The processes of a database as nodes: the list of them, their secret, and their requests to drain."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import secrets
from typing import Final

from warren.base.nodes import Node
from warren.storage.membership import SECRET_BYTES, SECRETS, SecretOf, node_of, secret_of, status_of
from warren.storage.postgres.driver import Connection, Row, array, unescaped
from warren.storage.postgres.lease import alive

# With the number of processes so far: of one that came, wrote and left between two looks no row tells.
_WROTE: Final = """
    SELECT hashtextextended((SELECT last_value FROM warren.holders_key_seq) || ' '
        || coalesce(string_agg(wrote, ',' ORDER BY wrote), ''), 0) FROM (
        SELECT holder || ' ' || generation || ' ' || groups AS wrote
        FROM warren.writers WHERE holder IS DISTINCT FROM $1::int
    ) AS others
"""
# This process counts as alive for itself, as late as it may be.
NODES: Final = f"""
    SELECT h.key, h.name, h.status FROM warren.holders h WHERE h.key = $1::int OR {alive("$1::int")}
"""
_ASK_TO_LEAVE: Final = "UPDATE warren.holders SET leaves = true WHERE key = ANY ($1::int[])"


def node_in(row: Row) -> Node:
    """Return the node of a row of `NODES`."""
    key, name, status = row
    return node_of(key, unescaped(name), status)


async def version_of_others(db: Connection, me: int | None) -> int:
    """Return a number that changes with each group that another process commits."""
    return int(await db.value(_WROTE, me))


async def ask_to_drain(db: Connection, name: str) -> bool:
    """Ask the living nodes of a name to drain; return whether there is one."""
    rows = await db.fetch(NODES, None)
    named = [key for key, _, status in rows if status_of(status).node == name]
    if named:
        await db.fetch(_ASK_TO_LEAVE, array(named))
    return bool(named)


async def secret(db: Connection, of: SecretOf) -> bytes:
    """Return a secret of the store, which is made if it is missing or damaged."""
    column = SECRETS[of]
    while True:
        stored = await db.value(f"SELECT {column} FROM warren.meta")
        found = secret_of(stored)
        if found is not None:
            return found
        # The condition makes the first of several callers win.
        add = f"UPDATE warren.meta SET {column} = $1 WHERE {column} IS NOT DISTINCT FROM $2"
        await db.fetch(add, secrets.token_hex(SECRET_BYTES), stored)
