"""Examinations of the store for clients of its runtime: one at a time, in another thread or on another connection."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio

from warren.base.errors import CapacityExceededError, PersistenceDisabledError, StoreError
from warren.base.values import define
from warren.conversation.memory import MemoryConfig
from warren.reports.reports import FileFacts, Report, StoreReport, report_for_client
from warren.settings.config import Config, PostgresConfig, StoreConfig

LIMIT: Final = 300.0
"""Seconds that an examination may take."""
REST: Final = 0.0002
"""Seconds for which an examination stands back, every few milliseconds: the event loop does not wait for the
interpreter each time that it needs it."""


async def examine_in_thread(store: StoreConfig, memory: MemoryConfig | None) -> Report[FileFacts]:
    """Examine a store and its memory beside the event loop."""
    return await trio.to_thread.run_sync(partial(_examine_files, store, memory))


@define(eq=False)
class StoreChecks:
    """Runs the examinations of one runtime's store.

    Attributes:
        examine: examines files.
    """

    examine: Callable[[StoreConfig, MemoryConfig | None], Awaitable[Report[FileFacts]]] = examine_in_thread
    _running: trio.Lock = attrs.field(factory=trio.Lock)

    async def run(self, config: Config, *, ids: bool) -> StoreReport:
        """Return the report of an examination; see `SessionService.check_store`.

        Args:
            config: the settings of the runtime.
            ids: whether findings name the sessions that they concern.
        """
        if config.store is None:
            raise PersistenceDisabledError("session persistence is disabled: there is no store to examine")
        try:
            self._running.acquire_nowait()
        except trio.WouldBlock:
            raise CapacityExceededError("an examination of the store runs already", cause="store_check") from None
        began = trio.current_time()
        try:
            with trio.fail_after(LIMIT):
                return await self._report(config, config.store, began, ids=ids)
        except trio.TooSlowError:
            problem = f"the examination took more than {LIMIT:.0f} s and was ended: run `warren doctor` instead"
            raise StoreError(problem, cause="timeout", retryable=False) from None
        finally:
            self._running.release()

    async def _report(
        self, config: Config, store: StoreConfig | PostgresConfig, began: float, *, ids: bool
    ) -> StoreReport:
        if isinstance(store, PostgresConfig):
            from warren.storage.maintenance.postgres import doctor  # noqa: PLC0415 - it has an extra of its own

            of_database = await doctor.examine(store)
            return report_for_client(of_database, trio.current_time() - began, ids=ids)
        of_file = await self.examine(store, config.memory)
        return report_for_client(of_file, trio.current_time() - began, ids=ids)


def _examine_files(store: StoreConfig, memory: MemoryConfig | None) -> Report[FileFacts]:
    """Examine a store and its memory, in a thread that ends soon after the caller was cancelled."""
    from warren.storage.maintenance import doctor  # noqa: PLC0415 - it has an extra of its own

    report = doctor.examine(store, go_on=_go_on)
    if memory is None or memory.path is None:
        return report
    from warren.storage.maintenance.memory import examine_memory  # noqa: PLC0415 - it has an extra of its own

    facts, findings = examine_memory(memory.path, go_on=_go_on)
    return attrs.evolve(report, memory=facts, findings=(*report.findings, *findings))


def _go_on() -> None:
    """Let the other threads go on, and end the examination if its caller was cancelled."""
    time.sleep(REST)
    trio.from_thread.check_cancelled()
