"""The ledger in a file: the sums that a group of turns adds to, and the reads of it."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from warren.conversation import codec
from warren.conversation.usage import Usage
from warren.reports.ledger import COUNTS, OF_SESSIONS, Figures, figures_of, hour_of
from warren.storage import ledger
from warren.storage.operations import Commit
from warren.storage.queries import KnownTenants, LedgerSums, TokensSince
from warren.storage.rows import DELETED, MAX_NUMBER, corrupt, microseconds, number_in, shown, text_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.reading import Reading

_HOLDER: Final = 0
"""One process at a time writes a file, so that all add to the same rows."""
_PRICED: Final = f"""
    SELECT {raw("priced")} FROM usage WHERE tenant = ? AND hour = ? AND payer = ? AND model = ? AND holder = {_HOLDER}
"""
_ADD: Final = f"""
    INSERT INTO usage ({ledger.KEY}, {ledger.COLUMNS}) VALUES (?,?,?,?,{_HOLDER},?,?,?,?,?,?,?)
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = min({name}, {MAX_NUMBER}) + excluded.{name}" for name in COUNTS)}
"""
_ADD_PRICED: Final = f"{_ADD}, priced = excluded.priced"
_READ: Final = f"""
    SELECT {raw("tenant, hour, model")}, {raw(ledger.COLUMNS)} FROM usage
    WHERE {{mine}} AND hour >= ?2 AND hour < ?3
"""
_TOKENS: Final = """
    SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage WHERE tenant = ?1 AND hour >= ?2
"""
_TOKENS_OF: Final = f"{_TOKENS} AND payer = ?3"
_TENANTS: Final = f"SELECT {raw('tenant')} FROM sessions UNION SELECT {raw('tenant')} FROM usage"
_USAGE: Final = "iif(json_valid(details), details -> '$.usage', NULL)"
_OF_SESSIONS: Final = f"""
    SELECT {raw("session_id, session_id, turns")}, {_USAGE} FROM sessions
    WHERE {{mine}} AND state <> {DELETED} AND updated_at >= ?2 AND updated_at < ?3
"""
_OF_LABELS: Final = f"""
    SELECT {raw("session_id")}, CAST(name || '=' || value AS BLOB), {raw("turns")}, {_USAGE}
    FROM labels CROSS JOIN sessions ON sessions.key = labels.session
    WHERE {{mine}} AND state <> {DELETED} AND updated_at >= ?2 AND updated_at < ?3
"""


def add(db: apsw.Connection, commits: Iterable[Commit]) -> None:
    """Add the charges of stored turns, inside their transaction: a row for each tenant, hour, payer and model."""
    for key, sums in ledger.sums_of(commits).items():
        *counts, cost = sums
        priced = ledger.text_of(cost)
        if not cost:  # what is stored need not be read
            db.execute(_ADD, (*key, *counts, priced))
            continue
        stored = db.execute(_PRICED, key).get
        if stored is not None:
            try:
                priced = ledger.text_of(ledger.decimal_in(stored, "priced") + cost)
            except ValueError:  # a turn does not fail for it: `warren doctor` names the row, and reports refuse it
                priced = bytes(stored).decode(errors="replace") if isinstance(stored, bytes) else ""
        db.execute(_ADD_PRICED, (*key, *counts, priced))


def tokens_since(at: Reading, query: TokensSince) -> int:
    """Return the tokens of a tenant since an hour: all, or those that count for a payer."""
    values = query.tenant, microseconds(hour_of(query.hour))
    found = at.db.execute(_TOKENS, values) if query.payer is None else at.db.execute(_TOKENS_OF, (*values, query.payer))
    return number_in(found.get, "tokens")


def tenants(at: Reading, _query: KnownTenants) -> list[str]:
    """Return the tenants that have sessions or are in the ledger, by their names."""
    return sorted(text_in(tenant, "tenant") for (tenant,) in at.db.execute(_TENANTS))


def usage(at: Reading, query: LedgerSums) -> dict[str, Figures]:
    """Return the sums of a tenant, or of all, by their keys. Raises StoreError for a row that cannot be read."""
    if query.by in OF_SESSIONS:
        return ledger.added(_of_sessions(at.db, _OF_LABELS if query.by == "label" else _OF_SESSIONS, query))
    return ledger.added(_of_hours(at.db, query))


def _rows(db: apsw.Connection, sql: str, query: LedgerSums) -> apsw.Cursor:
    # Not one condition with OR for a tenant, ?1, and for all: it would keep the query from an index.
    sql = sql.format(mine="?1 IS NULL" if query.tenant is None else "tenant = ?1")
    return db.execute(sql, (query.tenant, *ledger.bounds_of(query.since, query.until)))


def _of_hours(db: apsw.Connection, query: LedgerSums) -> Iterator[tuple[str, Figures]]:
    for owner, hour, model, *figures in _rows(db, _READ, query):
        try:
            yield ledger.key_in(query.by, owner, hour, model), ledger.figures_in(figures)
        except ValueError as exc:
            raise corrupt(f"the row of {shown(owner)} at {shown(hour)} in the table usage", exc) from exc


def _of_sessions(db: apsw.Connection, sql: str, query: LedgerSums) -> Iterator[tuple[str, Figures]]:
    for session_id, key, turns, stored in _rows(db, sql, query):
        try:
            tokens = Usage() if stored is None else codec.decode_stored(Usage, str(stored).encode())
            yield text_in(key, "the label"), figures_of(tokens, number_in(turns, "turns"))
        except ValueError as exc:
            name = shown(session_id)
            raise corrupt(f"session {name}", exc, name) from exc
