"""The settings of a session that Warren's statements rely on, and the state of the server behind it. No I/O.

A role or a database may have other defaults for its sessions (ALTER ROLE, ALTER DATABASE), and so may a server.
"""
# ruff: noqa: S608 - only constants and numbers become part of the SQL

from collections.abc import Iterator, Sequence
from typing import Any, Final

from warren.settings.config import PostgresConfig

LEAST_IDLE: Final = 1000
"""Milliseconds that a transaction may always wait for its process, however short its leases are."""
FIXED: Final = {
    "array_nulls": "on",
    "bytea_output": "hex",
    "DateStyle": "ISO, MDY",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "extra_float_digits": "1",
    "gin_fuzzy_search_limit": "0",
    "idle_session_timeout": "0",
    "IntervalStyle": "postgres",
    "row_security": "on",
    "session_replication_role": "origin",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "transaction_timeout": "0",
}
"""Settings on which the meaning of statements and the life of sessions depend; an older server lacks some of them."""
DEFAULTS: Final = {"default_transaction_read_only": ("on", "off"), "synchronous_commit": ("off", "on")}
"""Values that count in the server's own configuration, by which an operator makes it read-only or less durable. As the
default of a role or a database they are meant for other programs: each is replaced by the second value."""
READ_ONLY: Final = (b"in_hot_standby", b"default_transaction_read_only")
"""Settings that the server reports to its sessions when they change."""
_OF_ROLE: Final = "('global', 'database', 'user', 'database user')"
_STATE: Final = "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'"


def script(config: PostgresConfig, **others: int) -> str:
    """Return the statements that a new session runs in one round trip; `check` reads the rows of the last two.

    A setting that this role may not change raises an error with its name.

    Args:
        config: the settings of the store.
        others: time limits in milliseconds, in the place of those by `config`.
    """
    limits = {
        "lock_timeout": max(1, round(config.lock_timeout * 1000)),
        "statement_timeout": max(1, round(config.timeout * 1000)),
        # A process that hangs within a transaction must not keep the locks of sessions beyond its leases.
        "idle_in_transaction_session_timeout": max(LEAST_IDLE, round(config.lease * 1000 / 2)),
        **others,
    }
    rows = [f"('{name}', '{value}', NULL)" for name, value in (FIXED | limits).items()]
    rows += [f"('{name}', '{wanted}', '{bad}')" for name, (bad, wanted) in DEFAULTS.items()]
    return f"""
        SET search_path = pg_catalog;
        SELECT s.name, s.setting, set_config(s.name, w.wanted, false)
        FROM (VALUES {", ".join(rows)}) AS w(name, wanted, bad) JOIN pg_settings s USING (name)
        WHERE s.setting <> w.wanted AND (w.bad IS NULL OR (s.setting = w.bad AND s.source IN {_OF_ROLE}));
        {_STATE}
    """


def replaced(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Return a sentence for each default that was replaced; `rows` are those of the last statement but one."""
    for name, value, instead in rows:
        if name in DEFAULTS or name == "row_security":
            yield f"the role or the database sets {name} = {value}: the sessions of Warren have {instead}"


def unwritable(recovering: bool, read_only: bool) -> str | None:  # noqa: FBT001 - the columns of a row
    """Return why nothing can be stored on a server; None if it can. The arguments are the row of the last statement."""
    if recovering:
        return "the server is a standby, which takes no writes"
    return "the server is read-only (default_transaction_read_only = on)" if read_only else None
