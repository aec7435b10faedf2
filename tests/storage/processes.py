"""Another process on a store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from warren.settings.config import StoreConfig
from warren.storage.operations import Claim, Claimed, Operation
from warren.storage.queries import SessionStart
from warren.storage.runner import inline_runner
from warren.storage.sqlite import Holder, SqliteStore


@attrs.define(eq=False)
class Process:
    """A stand-in for another process: a store with a holder of its own, that can die without a word."""

    store: SqliteStore
    holder: Holder

    @classmethod
    async def starting(cls, path: Path, name: str = "somebody", clock: Callable[[], float] | None = None) -> "Process":
        """Open the store below a folder."""
        config = StoreConfig(path / "store", holder=name)
        holder = Holder.of(config)
        holder.clock = clock or holder.clock
        return cls(await SqliteStore.open(config, holder=holder, runner=inline_runner), holder)

    async def do(self, operation: Operation[Any]) -> Any:
        """Write one operation; return what it comes to."""
        (outcome,) = await self.store.write([operation])
        return outcome

    async def claim(self, session_id: str = "a") -> Claimed:
        """Take a session that is free."""
        claimed = await self.do(Claim(session_id))
        assert isinstance(claimed, Claimed)
        return claimed

    async def floor(self, session_id: str = "a") -> int:
        """Return the number above which a session's events go on."""
        stored = await self.store.read(SessionStart(session_id))
        assert stored is not None
        return stored.seq_floor

    def die(self) -> None:
        """Leave everything as a process does that is killed: the system drops its lock."""
        self.holder.die()

    async def end(self) -> None:
        """Close in good order."""
        await self.store.aclose()
