"""The tokens in the table of a store in a database, which all nodes on it share."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from warren.base.errors import InvalidParamsError, StoreError
from warren.base.fields import FieldValueError
from warren.base.tenant_limits import TokenLimits
from warren.base.values import define
from warren.conversation import codec
from warren.settings.config import PostgresConfig
from warren.transport.access.logins import Login
from warren.transport.access.token_list import Token
from warren.transport.access.watched import LOOK

if TYPE_CHECKING:
    from warren.storage.postgres.tokens import TokenRow, TokenTable

FIELD: Final = "$.token_table"
IN_FILES: Final = "needs a store in a database: one in files has no tokens"
Use = Callable[[Mapping[bytes, Login]], None]
logger: Final = logging.getLogger(__name__)


def open_table(config: PostgresConfig) -> "TokenTable":
    """Return the table of a store, for an `async with`; it connects at its first use."""
    from warren.storage.postgres.tokens import TokenTable  # noqa: PLC0415 - it needs psycopg

    return TokenTable(config)


def row_of(token: Token) -> "TokenRow":
    """Return the row of a token."""
    from warren.storage.postgres.tokens import TokenRow  # noqa: PLC0415 - as above

    limits = codec.encode(token.limits.given())
    return TokenRow(token.hash, token.tenant, token.name, token.scopes, token.expires, limits)


def token_of(row: "TokenRow") -> Token:
    """Return the token of a row. Raises InvalidParamsError, which names the row by its hash, and the column."""
    root = f"{FIELD}: {row.hash[:19]}"
    try:
        limits = codec.from_data(TokenLimits, codec.parse(row.limits), root="limits")
        scopes: Any = row.scopes  # the token checks them
        return Token(hash=row.hash, tenant=row.tenant, name=row.name, scopes=scopes, expires=row.expires, limits=limits)
    except FieldValueError as exc:
        raise InvalidParamsError(f"{root}: {exc.field} {exc.problem}", path=FIELD) from None
    except InvalidParamsError as exc:
        raise InvalidParamsError(f"{root}: {exc.message}", path=FIELD) from None


@define(eq=False)
class WatchedTable:
    """The table whose tokens are let in. While it cannot be read, those that were read last stay in use.

    Attributes:
        config: the store.
        problem: why the newest rows are not in use; None if they are.
    """

    config: PostgresConfig
    problem: str | None = attrs.field(default=None, init=False)

    async def follow(self, use: Use, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pass on the tokens, and those of each later change, until cancelled. It has started after the first look."""
        async with AsyncExitStack() as stack:
            table = await stack.enter_async_context(open_table(self.config))
            await self.look(table, use)
            task_status.started()
            while True:
                await trio.sleep(LOOK)
                await self.look(table, use)

    async def look(self, table: "TokenTable", use: Use) -> None:
        """Pass on the tokens if they have changed and can be used. A problem is logged once."""
        try:
            rows = await table.changed()
            found = None if rows is None else [token_of(row).login() for row in rows]
        except (StoreError, InvalidParamsError) as exc:
            if exc.message != self.problem:
                logger.error("the old tokens stay in use: %s", exc.message)  # noqa: TRY400 - the text says all
            self.problem = exc.message
            return
        if found is not None:
            use({login.key: login for login in found})
            self.problem = None
