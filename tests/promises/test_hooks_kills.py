"""A process is killed on the way of a call through the hooks of its agent, and a second one with the agent goes on."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from tests.support.postgres import database
from tests.support.telling import running
from warren.actors.turn.left import MAY_HAVE_RUN

LATER = 60.0
"""Seconds within which a turn goes on after the death of its process, with those of a slow machine."""
CALLED, AGAIN, RAN = "hook False", "hook True", "tool"
DENIED, PAID = "not run: too much", "[paid 17]"


@attrs.frozen
class Place:
    """A store, and the file in which the processes note the calls of the hook and the tool."""

    store: str
    notes: Path

    async def run(self, **told: str) -> dict[str, object] | None:
        """Run a process to its answer, or until the call waits for a person; None if it has ended itself before."""
        command = [sys.executable, "-m", "tests.promises.hooks_node", self.store, str(self.notes)]
        async with running(command) as (_, telling):
            await telling.say(json.dumps(told))
            with trio.fail_after(LATER):
                return await telling.next()

    def noted(self) -> list[str]:
        """Return what was called, in all processes."""
        return self.notes.read_text().splitlines()


@pytest.fixture(params=["files", "database"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return a new store."""
    if request.param == "files":
        yield Place(str(tmp_path / "store"), tmp_path / "notes")
        return
    with database() as url:
        yield Place(url, tmp_path / "notes")


@pytest.mark.time_limit(150)
@pytest.mark.parametrize(
    ("at", "calls"),
    [("hook", 2), ("before", 2), ("after", 1)],
    ids=["in the hook", "before the denial is stored", "after"],
)
async def test_a_denied_call_never_runs(place: Place, at: str, calls: int) -> None:
    """The hook is asked again until its denial is stored, not later, and the tool never runs."""
    assert await place.run(act="deny", restart="replay", at=at) is None
    assert await place.run(act="deny", restart="replay") == {"answer": DENIED}
    assert place.noted() == [CALLED] * calls


@pytest.mark.time_limit(150)
async def test_a_call_that_had_not_begun(place: Place) -> None:
    """It runs once, whatever the rule of its tool is, as no earlier process had begun it."""
    assert await place.run(act="pass", restart="report", at="hook") is None
    assert await place.run(act="pass", restart="report") == {"answer": PAID}
    assert place.noted() == [CALLED, CALLED, RAN]


@pytest.mark.time_limit(150)
@pytest.mark.parametrize("at", ["tool", "result"], ids=["while it runs", "while the hook looks at its result"])
async def test_a_call_that_may_run_again(place: Place, at: str) -> None:
    """It does so within its hooks, which are told of it, and the result is the one that they have made."""
    assert await place.run(act="pass", restart="replay", at=at) is None
    assert await place.run(act="pass", restart="replay") == {"answer": PAID}
    assert place.noted() == [CALLED, RAN, AGAIN, RAN]


@pytest.mark.time_limit(150)
@pytest.mark.parametrize("at", ["tool", "result"], ids=["while it runs", "while the hook looks at its result"])
async def test_a_call_that_may_not_run_again(place: Place, at: str) -> None:
    """The model is told that nobody knows what became of it, and no hook is called."""
    assert await place.run(act="pass", restart="report", at=at) is None
    assert await place.run(act="pass", restart="report") == {"answer": MAY_HAVE_RUN}
    assert place.noted() == [CALLED, RAN]


@pytest.mark.time_limit(150)
@pytest.mark.parametrize("at", ["tool", "result"], ids=["while it runs", "while the hook looks at its result"])
async def test_a_call_that_is_denied_after_a_crash(place: Place, at: str) -> None:
    """The hook's new word counts: the call does not run again, and the model is told that it may have run."""
    assert await place.run(act="pass", restart="replay", at=at) is None
    assert await place.run(act="deny", restart="replay") == {"answer": "not run again: too much"}
    assert place.noted() == [CALLED, RAN, AGAIN]


@pytest.mark.time_limit(150)
async def test_a_person_decides_after_the_process_was_killed(place: Place) -> None:
    """Nobody is asked again: the next process takes the decision, calls the hooks, and runs the call once."""
    assert await place.run(act="ask", restart="report") == {"waits": True}
    assert await place.run(act="ask", restart="report", decision="allow") == {"answer": PAID}
    assert place.noted() == [CALLED, CALLED, RAN]


@pytest.mark.time_limit(150)
async def test_a_person_decides_whether_a_call_runs_again(place: Place) -> None:
    """Its tool says so: the call waits, and then runs within its hooks."""
    assert await place.run(act="pass", restart="ask", at="tool") is None
    assert await place.run(act="pass", restart="ask") == {"waits": True}
    assert await place.run(act="pass", restart="ask", decision="allow") == {"answer": PAID}
    assert place.noted() == [CALLED, RAN, AGAIN, RAN]
