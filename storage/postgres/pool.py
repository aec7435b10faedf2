"""The connections that read: each used by one caller at a time, opened when needed, and replaced when it breaks."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from warren.base.values import define
from warren.settings.config import PostgresConfig
from warren.storage.postgres.driver import Connection, LostError
from warren.storage.postgres.writer import BACKOFF

R = TypeVar("R")


@define(eq=False)
class Readers:
    """A pool of connections that read, or that make changes which can be made again.

    Attributes:
        name: shown in the server's list of connections.
        settings: a script that each new connection runs.
    """

    _config: PostgresConfig
    name: str = "reader"
    settings: str = ""
    _free: list[Connection] = attrs.field(factory=list)
    _limit: trio.Semaphore = attrs.field(
        default=attrs.Factory(lambda self: trio.Semaphore(self._config.readers), takes_self=True)
    )
    _closed: bool = False
    _era: int = 0

    async def run(self, query: Callable[[Connection], Awaitable[R]]) -> R:
        """Run a query on a free connection; if that breaks, again on a new one, for as long as the settings allow.

        The wait for a free one counts. A query that has begun runs to its end, even if the caller is cancelled. Raises
        LostError and psycopg's Error.
        """
        deadline = trio.current_time() + self._config.timeout
        with trio.move_on_at(deadline) as waiting:
            await self._limit.acquire()
        if waiting.cancelled_caught:
            raise LostError(f"no connection was free within {self._config.timeout:g} s")
        try:
            # Shielded: a query that was cut off would leave its answer on the connection, for the next caller to read.
            with trio.CancelScope(shield=True):
                found = await self._run(query, deadline)
        finally:
            self._limit.release()
        return found

    async def _run(self, query: Callable[[Connection], Awaitable[R]], deadline: float) -> R:
        pauses = iter(BACKOFF)
        while True:
            try:
                era = self._era
                db = await self._connected()
                try:
                    return await query(db)
                finally:
                    self._put_back(db, era)
            except LostError:
                self._drop_free()  # they lead to the same server, and each would wait for it anew
                pause = next(pauses)
                if self._closed or trio.current_time() + pause > deadline:
                    raise
            await trio.sleep(pause)

    async def _connected(self) -> Connection:
        while self._free:
            db = self._free.pop()
            if db.usable:
                return db
            db.close()
        db = await Connection.open(self._config, self.name)
        try:
            if self.settings:
                await db.script(self.settings)
        except BaseException:
            db.close()
            raise
        return db

    def _put_back(self, db: Connection, era: int) -> None:
        if db.usable and era == self._era and not self._closed:
            self._free.append(db)
        else:
            db.close()

    def close(self) -> None:
        """Close the connections; those in use are closed when their queries end. Idempotent."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Close the connections; those in use are closed when their queries end. Later queries connect anew."""
        self._era += 1
        self._drop_free()

    def _drop_free(self) -> None:
        while self._free:
            self._free.pop().close()
