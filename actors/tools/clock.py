"""Tools of time: the current time, and waiting."""

import datetime as dt
import zoneinfo
from typing import Annotated, Final

import msgspec
import trio

from warren.models.tools import Tool, ToolError, tool

MAX_WAIT: Final = 3600
_Zone = Annotated[str, "IANA name of the time zone, as in UTC or Europe/Berlin"]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT), "how long, in seconds"]


def clock_tools() -> tuple[Tool, ...]:
    """Return the tools `datetime_now` and `wait`; an interrupt ends a wait at once."""
    replayed = tool(restart="replay")
    return (replayed(datetime_now), tool(timeout=MAX_WAIT + 60, polls=True, restart="replay")(wait))


def datetime_now(timezone: _Zone = "UTC") -> str:
    """Return the date and the time, in ISO 8601 with the offset from UTC, and the day of the week."""
    now = dt.datetime.now(_zone(timezone))
    return f"{now.isoformat(timespec='seconds')} {now:%A}"


async def wait(seconds: _Seconds) -> str:
    """Wait for some seconds, at most an hour at once."""
    await trio.sleep(seconds)
    return f"waited {seconds:g} s"


def _zone(name: str) -> dt.tzinfo:
    if name.upper() in ("UTC", "Z"):  # UTC needs no time zone database
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # a folder of the database gives an OSError
        raise ToolError(f"timezone: there is no {name!r}; give an IANA name, as in UTC or Europe/Berlin") from None
