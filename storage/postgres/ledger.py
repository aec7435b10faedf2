"""The reads of the ledger in a database. The turns add to it in their own statement, see commit.py."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.usage import NO_USAGE, Usage
from warren.reports.ledger import COUNTS, OF_SESSIONS, By, Figures, figures_of, hour_of, key_of, keys_of
from warren.storage.ledger import HOUR, added, bounds_of, figures_in
from warren.storage.postgres.driver import escaped, unescaped
from warren.storage.postgres.reading import Reading
from warren.storage.queries import KnownTenants, LedgerSums, TokensSince
from warren.storage.rows import DELETED, corrupt, microseconds, time_in


@frozen
class _Used:
    """The tokens in the column `details`."""

    usage: Usage = NO_USAGE


_TOKEN_COUNTS: Final = [each for each in COUNTS if each not in ("turns", "unpriced_tokens")]
_SUMS: Final = f"{', '.join(f'sum({each})::int8' for each in COUNTS)}, sum(priced)::text"
_KEYS: Final[Mapping[By, str]] = {
    "hour": "hour",
    "day": f"hour - hour % {24 * HOUR}",
    "model": "model",
    "tenant": "tenant",
}
_READ: Final = f"""
    SELECT {{key}}, {_SUMS} FROM warren.usage
    WHERE ($1::text IS NULL OR tenant = $1) AND hour >= $2::int8 AND hour < $3::int8
    GROUP BY 1
"""
_TOKENS: Final = """
    SELECT coalesce(sum(input_tokens + output_tokens), 0)::int8 FROM warren.usage
    WHERE tenant = $1 AND hour >= $2::int8 AND ($3::text IS NULL OR payer = $3)
"""
_TENANTS: Final = "SELECT tenant FROM warren.sessions UNION SELECT tenant FROM warren.usage"
# The server takes no JSON with a NUL apart: such sessions are read here.
_NUL: Final = "strpos(details, '\\u0000')"
_STORED: Final = f"""
    FROM warren.sessions
    WHERE ($1::text IS NULL OR tenant = $1) AND updated_at >= $2::int8 AND updated_at < $3::int8
        AND state <> {DELETED} AND {_NUL}
"""
# If a part of a session's cost is unknown, all of its tokens are unpriced.
_OF_SESSIONS: Final = f"""
    SELECT {{key}}, {_SUMS} FROM (
        SELECT session_id, marks, turns, details::json -> 'usage' AS used {_STORED} = 0
    ) AS sessions CROSS JOIN LATERAL (
        SELECT {", ".join(f"coalesce((used ->> '{each}')::int8, 0) AS {each}" for each in _TOKEN_COUNTS)},
            (used ->> 'cost')::numeric AS cost
    ) AS tokens CROSS JOIN LATERAL (
        SELECT coalesce(cost, 0) AS priced,
            CASE WHEN cost IS NULL THEN input_tokens + output_tokens ELSE 0 END AS unpriced_tokens
    ) AS prices {{labels}} GROUP BY 1
"""
_BY_SESSION: Final = _OF_SESSIONS.format(key="session_id", labels="")
_BY_LABEL: Final = _OF_SESSIONS.format(key="mark", labels="CROSS JOIN LATERAL unnest(marks) AS mark")
_WITH_NUL: Final = f"SELECT session_id, labels, turns, details {_STORED} > 0"


async def tokens_since(at: Reading, query: TokensSince) -> int:
    """Return the tokens of a tenant since an hour: all, or those that count for a payer."""
    payer = None if query.payer is None else escaped(query.payer)
    return int(await at.db.value(_TOKENS, query.tenant, microseconds(hour_of(query.hour)), payer))


async def tenants(at: Reading, _query: KnownTenants) -> list[str]:
    """Return the tenants that have sessions or are in the ledger, by their names."""
    return sorted(tenant for (tenant,) in await at.db.fetch(_TENANTS))


async def usage(at: Reading, query: LedgerSums) -> dict[str, Figures]:
    """Return the sums of a tenant, or of all, by their keys. Raises StoreError for a row that cannot be read."""
    by, values = query.by, (query.tenant, *bounds_of(query.since, query.until))
    if by in OF_SESSIONS:
        sql = _BY_LABEL if by == "label" else _BY_SESSION
        summed, others = await at.db.fetch_each((sql, *values), (_WITH_NUL, *values))
    else:
        summed, others = await at.db.fetch(_READ.format(key=_KEYS[by]), *values), []
    try:
        figures = ((_key_in(by, key), figures_in(values)) for key, *values in summed)
        return added(chain(figures, *(_of_session(by, *row) for row in others)))
    except ValueError as exc:
        raise corrupt("a row of the table usage", exc) from exc


def _key_in(by: By, key: int | str) -> str:
    """Return the key of a row in a report. Raises ValueError."""
    if isinstance(key, str):
        return "=".join(codec.parse(key)) if by == "label" else unescaped(key)
    return key_of(time_in(key, "hour"), by)


def _of_session(by: By, session_id: str, labels: str, turns: int, details: str) -> Iterator[tuple[str, Figures]]:
    figures = figures_of(codec.decode_stored(_Used, details.encode()).usage, turns)
    for key in keys_of(by, unescaped(session_id), codec.decode_stored(dict[str, str], labels.encode())):
        yield key, figures
