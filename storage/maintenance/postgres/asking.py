"""Asks the checks of a store in a database."""

from collections.abc import AsyncIterator, Iterable

from warren.reports.reports import Finding
from warren.storage.maintenance.checks import Check, asked
from warren.storage.postgres.driver import Connection, unescaped


async def findings_of(db: Connection, checks: Iterable[Check], *, full: bool = False) -> AsyncIterator[Finding]:
    """Yield the findings of checks. Raises as `Connection.fetch`."""
    for check, sql in asked(checks, "postgres", full=full):
        for finding in check.found(await db.fetch(sql), unescaped):
            yield finding
