"""The versions of agents that sessions were made of, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Any, Final

import apsw

from warren.agents.spec import StoredAgent
from warren.storage.operations import KeepAgent
from warren.storage.queries import AgentVersions
from warren.storage.results import Rows
from warren.storage.rows import AGENT, agent_in, agent_to_row, shown
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.reading import Reading

_KEEP: Final = f"INSERT INTO agents ({AGENT}) VALUES (?,?,?,?,?) ON CONFLICT (tenant, name, version) DO NOTHING"
_NEWEST: Final = f"""
    SELECT {raw(AGENT)} FROM agents WHERE key IN (SELECT max(key) FROM agents WHERE tenant = ?1 GROUP BY name)
    ORDER BY name LIMIT ?4
"""
_VERSIONS: Final = f"""
    SELECT {raw(AGENT)} FROM agents WHERE tenant = ?1 AND name = ?2 AND (?3 IS NULL OR version = ?3)
    ORDER BY key DESC LIMIT ?4
"""


def keep(operation: KeepAgent, db: apsw.Connection, _holder: Holder) -> None:
    """Write the row of a version."""
    db.execute(_KEEP, agent_to_row(operation.tenant, operation.spec, operation.created_at))


def versions(at: Reading, query: AgentVersions) -> Rows[StoredAgent]:
    """Return versions of agents of a tenant."""
    sql, values = (_NEWEST if query.name is None else _VERSIONS), (query.tenant, query.name, query.version, query.limit)
    rows: list[Any] = at.db.execute(sql, values).fetchall()
    return Rows(rows, agent_in, _name)


def _name(row: tuple[Any, ...]) -> str:
    return f"agent {shown(row[1])}"
