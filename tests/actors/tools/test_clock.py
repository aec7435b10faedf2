"""The tools of time."""

import datetime as dt

import pytest
import trio

from warren.actors.tools.clock import MAX_WAIT, clock_tools, datetime_now, wait
from warren.models.tools import ToolArgumentsError, ToolError

NOW, WAIT = clock_tools()


@pytest.mark.parametrize("zone", ["UTC", "utc", "Asia/Kathmandu"])
def test_now(zone: str) -> None:
    """It is the time of the machine, with the offset of the zone and the right day of the week."""
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    text, day = datetime_now(zone).split(" ")
    told = dt.datetime.fromisoformat(text)
    assert before <= told <= dt.datetime.now(dt.UTC)
    assert told.utcoffset() == (dt.timedelta(hours=5, minutes=45) if zone == "Asia/Kathmandu" else dt.timedelta())
    assert day == told.strftime("%A")


@pytest.mark.parametrize("zone", ["", "Europe", "Mars/Base", "../../etc/passwd", "/etc/localtime", "a\0b", "x" * 5000])
def test_no_such_zone(zone: str) -> None:
    """A text that is no zone is refused with an example of one."""
    with pytest.raises(ToolError, match=r"^timezone: .*Europe/Berlin"):
        datetime_now(zone)


@pytest.mark.virtual_time
async def test_wait() -> None:
    """A wait takes as long as was asked for, and the tool's own time limit is longer than the longest."""
    began = trio.current_time()
    assert await WAIT.call(**WAIT.bind({"seconds": MAX_WAIT})) == "waited 3600 s"
    assert trio.current_time() - began == pytest.approx(MAX_WAIT)
    assert WAIT.timeout is not None
    assert WAIT.timeout > MAX_WAIT


@pytest.mark.virtual_time
async def test_wait_is_interrupted() -> None:
    """An interrupt ends a wait at once."""
    with trio.move_on_after(1) as scope:
        await wait(3000)
    assert scope.cancelled_caught
    assert trio.current_time() < scope.deadline + 1


@pytest.mark.parametrize("seconds", [-1, MAX_WAIT + 1, "long", None])
def test_wait_out_of_bounds(seconds: object) -> None:
    """How long it may be is checked before it begins, and is in the schema for the model."""
    with pytest.raises(ToolArgumentsError, match="seconds"):
        WAIT.bind({"seconds": seconds})
    assert WAIT.spec.input_schema["properties"]["seconds"]["maximum"] == MAX_WAIT
    assert NOW.spec.input_schema["properties"]["timezone"]["description"]
