"""The table of the tokens of clients, by their hashes; see `warren token`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

from psycopg import errors

from warren.base.values import define, frozen
from warren.settings.config import PostgresConfig
from warren.storage.postgres.driver import Connection, LostError, array, escaped, unescaped
from warren.storage.postgres.faults import of_opening
from warren.storage.postgres.schema import prepare

# With the transaction of the row: a store that has gone back may count up to the same number again.
_VERSION: Final = "SELECT number || ' ' || xmin FROM warren.tokens_version"
_ALL: Final = """
    SELECT hash, tenant, name, scopes, extract(epoch FROM expires)::float8, limits::text FROM warren.tokens
    ORDER BY made_at, hash
"""
_ADD: Final = """
    INSERT INTO warren.tokens (hash, tenant, name, scopes, expires, limits)
    VALUES ($1, $2, $3, $4::text[], $5::timestamptz, $6::text::jsonb)
"""
_REMOVE: Final = "DELETE FROM warren.tokens WHERE hash = ANY ($1::text[])"


@frozen
class TokenRow:
    """A row of the table, as it is there: people may write it too.

    Attributes:
        hash: `sha256:` and the hash of the token, in hexadecimal digits.
        tenant: the tenant of its clients.
        name: the name of its clients within the tenant.
        scopes: the rights of its clients.
        expires: its end; None if it has none.
        limits: the limits of its clients, as JSON.
    """

    hash: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    expires: datetime | None
    limits: bytes = b"{}"


@define(eq=False)
class TokenTable:
    """The table of a store, for one task at a time: on a connection of its own, opened when it is needed.

    Every method raises StoreError, which names the address. The next call connects anew then.
    """

    _config: PostgresConfig
    _db: Connection | None = None
    _version: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def changed(self) -> list[TokenRow] | None:
        """Return all rows if they have changed since the last call, and at the first one; else None."""
        ((version,),) = await self._run(_VERSION)
        if version == self._version:
            return None
        found = await self.rows()  # may be newer than the version: the next call then returns them again
        self._version = version
        return found

    async def rows(self) -> list[TokenRow]:
        """Return all rows, the oldest first."""
        return [
            TokenRow(
                key,
                tenant,
                unescaped(name),
                tuple(scopes),
                None if end is None else datetime.fromtimestamp(end, UTC),
                limits.encode(),
            )
            for key, tenant, name, scopes, end, limits in await self._run(_ALL)
        ]

    async def add(self, row: TokenRow) -> None:
        """Add a row."""
        end = None if row.expires is None else row.expires.isoformat()
        await self._run(
            _ADD, row.hash, row.tenant, escaped(row.name), array(list(row.scopes)), end, row.limits.decode()
        )

    async def remove(self, hashes: Sequence[str]) -> None:
        """Remove the rows with these hashes, if they are there."""
        await self._run(_REMOVE, array(list(hashes)))

    async def prepare(self) -> None:
        """Make the table, if it is missing and this login may: a server has it from its store."""
        try:
            await prepare(await self._connected())
        except (LostError, errors.Error) as exc:
            self._close()
            raise of_opening(exc, self._config) from exc

    async def _run(self, sql: str, *values: str | None) -> list[tuple[Any, ...]]:
        try:
            return await (await self._connected()).fetch(sql, *values)
        except (LostError, errors.Error) as exc:
            self._close()
            self._version = None
            raise of_opening(exc, self._config) from exc

    async def _connected(self) -> Connection:
        if self._db is None or not self._db.usable:
            self._close()
            self._db = await Connection.open(self._config, "tokens")
        return self._db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
