"""Logs of events without a store behind them."""

import trio

from warren.actors.events.eventlog import EventLog, LogPage


def new_log() -> EventLog:
    """Return a log whose store is empty."""

    async def read_stored(_session_id: str, _after_seq: int) -> LogPage:
        await trio.lowlevel.checkpoint()
        return LogPage()

    async def last_stored(_session_id: str, _up_to: int) -> int | None:
        await trio.lowlevel.checkpoint()
        return 0

    return EventLog("s", read_stored, last_stored, 5)
