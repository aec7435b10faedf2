"""The storage actor: takes whatever waits in its mailbox and commits it as one group."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import attrs

from warren.actors.owner import Owner
from warren.actors.protocol import Write
from warren.errors import StoreError, WarrenError
from warren.mailbox import Mail
from warren.storage import Operation

if TYPE_CHECKING:
    from warren.storage import Store

R = TypeVar("R")
OpenStore = Callable[[], Awaitable["Store"]]


@attrs.define(eq=False)
class StorageActor(Owner["Store"]):
    """Owns the store. Reads go past its mailbox, to connections of their own: they never wait for a commit.

    Attributes:
        last_error: what the newest failed write said; None while writes succeed.
        shown_unstored: set by whoever has shown events that will not be stored any more: the file then says so.
    """

    name: ClassVar[str] = "storage"
    last_error: str | None = None
    shown_unstored: bool = False

    async def write(self, operation: Operation[R]) -> R:
        """Commit one operation together with what else waits. Raises its typed error; then nothing of it was written.

        Cannot be cancelled: whoever writes learns what came of it.
        """
        result: R = await self.mailbox.post(Write(operation)).wait_settled()
        return result

    async def _take(self, owned: "Store", batch: list[Mail[Any]]) -> None:
        outcomes = await owned.write([cast("Write", mail.message).operation for mail in batch])
        self.last_error = None
        for mail, result in zip(batch, outcomes, strict=True):
            if isinstance(result, StoreError):
                self.last_error = result.message
            if isinstance(result, WarrenError):
                mail.refuse(result)
            else:
                mail.answer(result)

    async def _close(self, owned: "Store", *, crashed: bool) -> None:
        await owned.aclose(clean=not crashed and not self.shown_unstored)
