"""The session that a user names: by its id, the end of its id, or `last`."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from warren.base.errors import InvalidParamsError, SessionNotFoundError
from warren.calls.base import MAX_PAGE
from warren.calls.facade import SessionService

LAST: Final = "last"
PAGE: Final = 200
SHOWN: Final = 10
WHOLE: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def resolve(service: SessionService, name: str) -> str:
    """Return the id of a named session; `last` does not look at archived ones.

    The end of an id is compared with every stored id, which takes time linear in their number. A whole id is returned
    as it is, known or not.

    Raises:
        SessionNotFoundError: if no session fits.
        InvalidParamsError: if several sessions fit; the message lists them, and the path is `session_id`.
    """
    wanted = name.strip().lower()
    if wanted == LAST:
        page = await service.list(limit=PAGE)
        if not page.sessions:
            raise SessionNotFoundError("there is no session yet")
        return page.sessions[0].session_id
    if not wanted:
        raise InvalidParamsError.at("$.session_id", "must not be empty")
    if WHOLE.fullmatch(wanted):
        return wanted
    found = [session_id async for session_id in _ids(service) if session_id.endswith(wanted)]
    return _only(found, name)


async def id_ending(name: str, noun: str, page: Callable[[int], Awaitable[Sequence[str | None]]]) -> str:
    """Return the id of a thing that is named by the end of it; a whole id is returned as it is, known or not.

    Args:
        name: the end of the id.
        noun: what it is the id of, such as "schedule".
        page: returns the ids of up to `MAX_PAGE` things from an offset on, and None for each that is damaged.

    Raises InvalidParamsError if several fit, or none.
    """
    wanted, found, offset = name.strip().lower(), list[str](), 0
    if WHOLE.fullmatch(wanted):
        return wanted
    while True:
        ids = await page(offset)
        found += [each for each in ids if each is not None and each.endswith(wanted)]
        offset += MAX_PAGE
        if len(ids) < MAX_PAGE:
            break
    if len(found) == 1 and wanted:
        return found[0]
    problem = f"{name!r} fits {len(found)} {noun}s" if found else f"no {noun} has an id that ends with {name!r}"
    raise InvalidParamsError.at(f"$.{noun}_id", problem)


def _only(found: list[str], name: str) -> str:
    if not found:
        raise SessionNotFoundError(f"no session has an id that ends with {name!r}")
    if len(found) > 1:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        listed = ", ".join([*found[:SHOWN], *more])
        raise InvalidParamsError.at("$.session_id", f"{name!r} fits {len(found)} sessions: {listed}")
    return found[0]


async def _ids(service: SessionService) -> AsyncIterator[str]:
    offset = 0
    while True:
        page = await service.list(offset=offset, limit=PAGE, include_archived=True)
        for summary in page.sessions:
            yield summary.session_id
        if len(page.sessions) + len(page.damaged) < PAGE:
            return
        offset += PAGE
