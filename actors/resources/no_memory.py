"""The memory of a runtime that has none: nothing is remembered, and each search is refused with the reason."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NoReturn

from warren.base.errors import MemoryDisabledError, StoreError
from warren.base.values import frozen
from warren.calls.reading import SearchRequest
from warren.conversation.memory import Chosen
from warren.conversation.records import SessionRecord
from warren.models.tools import Tool
from warren.reports.health import MemoryHealth


@frozen(eq=False)
class NoMemory:
    """Stands in for the memory actor; see `warren.actors.resources.memory.Memory` for its methods.

    Attributes:
        fault: the error that keeps the memory from working; None if the runtime has no memory by its settings.
    """

    works: ClassVar[bool] = False
    searches: ClassVar[None] = None
    fault: StoreError | None = None

    def index_of(self, session: SessionRecord) -> None:
        """Return None: compactions remember nothing."""

    def tools_of(self, session_id: str, tenant: str) -> Mapping[str, Tool]:  # noqa: ARG002 - as Memory has it
        """Return no tools: the model has nothing to search."""
        return {}

    async def search(self, wanted: SearchRequest, tenant: str) -> Sequence[NoReturn]:  # noqa: ARG002 - as Memory has it
        """Raise MemoryDisabledError."""
        raise self._disabled()

    async def forget_texts(self, chosen: Chosen) -> NoReturn:  # noqa: ARG002 - as Memory has it
        """Raise MemoryDisabledError."""
        raise self._disabled()

    async def texts(
        self,
        tenant: str,  # noqa: ARG002 - as Memory has it
        sessions: Collection[str] | None = None,  # noqa: ARG002
    ) -> int:
        return 0

    async def cut(self, session_id: str, first: int, tenant: str) -> None:
        """Do nothing: no text was remembered."""

    async def forget(self, session_id: str) -> bool:  # noqa: ARG002 - as Memory has it
        """Return False: the deletion stays due until a runtime with the memory starts."""
        return False

    def _disabled(self) -> MemoryDisabledError:
        why = "the runtime was started without it" if self.fault is None else self.fault.message
        return MemoryDisabledError(f"semantic memory is disabled: {why}")

    def health(self) -> MemoryHealth | None:
        return None if self.fault is None else MemoryHealth("degraded", 0, self.fault.message)
