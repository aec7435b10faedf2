"""The versions of agents that sessions were made of, with SQL."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

from warren.agents.spec import StoredAgent
from warren.storage import operations as ops
from warren.storage.postgres.driver import Connection, Row
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.reading import Reading
from warren.storage.queries import AgentVersions
from warren.storage.results import Rows
from warren.storage.rows import AGENT, agent_in, agent_to_row, shown

_KEEP: Final = f"""
    INSERT INTO warren.agents ({AGENT}) VALUES ($1, $2, $3, $4::int8, $5)
    ON CONFLICT (tenant, name, version) DO NOTHING
"""
_NEWEST: Final = f"""
    SELECT {AGENT} FROM warren.agents
    WHERE key IN (SELECT max(key) FROM warren.agents WHERE tenant = $1 GROUP BY name) ORDER BY name LIMIT $2::int8
"""
_VERSIONS: Final = f"""
    SELECT {AGENT} FROM warren.agents WHERE tenant = $1 AND name = $2 AND ($3::text IS NULL OR version = $3)
    ORDER BY key DESC LIMIT $4::int8
"""


async def keep(operation: ops.KeepAgent, db: Connection, _holder: Holder) -> None:
    """Write the row of a version."""
    await db.fetch(_KEEP, *agent_to_row(operation.tenant, operation.spec, operation.created_at))


async def versions(at: Reading, query: AgentVersions) -> Rows[StoredAgent]:
    """Return versions of agents of a tenant."""
    if query.name is None:
        rows = await at.db.fetch(_NEWEST, query.tenant, query.limit)
    else:
        rows = await at.db.fetch(_VERSIONS, query.tenant, query.name, query.version, query.limit)
    return Rows(rows, agent_in, _name)


def _name(row: Row) -> str:
    return f"agent {shown(row[1])}"
