"""The pages of `session/list`: all sessions, or those of one folder."""

from collections.abc import Sequence
from typing import Final

from warren.base.values import frozen
from warren.calls.facade import SessionService
from warren.conversation.views import SessionSummary

PAGE: Final = 50
LOOKED_AT: Final = 200
"""Sessions that are read at once to find those of the agent's own folder."""
CWD: Final = "cwd"
"""The label under which a session has its folder."""


@frozen
class Listed:
    """A page of sessions.

    Attributes:
        rows: the sessions, up to `PAGE` of them.
        following: the offset of the next page; None if there is none.
    """

    rows: Sequence[SessionSummary]
    following: int | None


async def listed(service: SessionService, offset: int, cwd: str | None, own: str) -> Listed:
    """Return a page of sessions, the most recently changed one first.

    Args:
        service: the runtime.
        offset: the offset of the page, as the page before it has it.
        cwd: the folder of the sessions; None stands for all of them.
        own: the folder of the agent, which sessions without the label belong to.
    """
    if cwd == own:
        return await _of_own(service, offset, own)
    page = await service.list(offset=offset, limit=PAGE + 1, labels=None if cwd is None else {CWD: cwd})
    rows = page.sessions[:PAGE]
    more = len(page.sessions) + len(page.damaged) > PAGE
    # Damaged sessions take places of the page: the next one begins behind them.
    return Listed(rows, offset + len(rows) + len(page.damaged) if more else None)


async def _of_own(service: SessionService, offset: int, own: str) -> Listed:
    """Return a page of the sessions of the agent's folder. No filter finds a label that is missing, so it reads all."""
    rows, limit = list[SessionSummary](), LOOKED_AT
    while True:
        page = await service.list(offset=offset, limit=limit)
        places = [place for place, row in enumerate(page.sessions) if row.labels.get(CWD, own) == own]
        room = PAGE - len(rows)
        if len(places) > room and not page.damaged:
            rows += [page.sessions[place] for place in places[:room]]
            return Listed(rows, offset + places[room])
        if len(places) > room:
            # A page does not say where its damaged sessions are, so it has to be taken as a whole or not at all.
            if not room:
                return Listed(rows, offset)
            limit = room
            continue
        rows += [page.sessions[place] for place in places]
        looked_at = len(page.sessions) + len(page.damaged)
        if looked_at < limit:
            return Listed(rows, None)
        offset += looked_at
