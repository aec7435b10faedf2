"""The checks blame what breaks a promise, and nothing else."""

from typing import Any

import pytest

from tests.simulation.checks import Left, true_end
from tests.simulation.record import Record
from tests.simulation.users import Prompt, Told
from warren.base.errors import AgentError, WarrenError

DEATHS = "a process ended 6 times during the turn: it is not gone on with (limits.resumptions)"


def ended(message: str, cause: Any, first_seq: int = 7) -> WarrenError:
    """Return the end of a turn that began with some event."""
    return AgentError(message, cause=cause, details={"first_seq": first_seq})


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (ended(DEATHS, "crash"), False),
        (ended(DEATHS, "crash", 8), True),  # another turn of the session has seen so many
        (ended(DEATHS.replace("6", "7"), "crash"), True),
        (ended("a bug", "crash"), True),
        (ended("not known", "outcome_unknown"), True),
        (ended("no", "cancelled"), False),
    ],
)
def test_a_death_is_no_end_of_a_key_unless_there_were_too_many(error: WarrenError, *, blamed: bool) -> None:
    """A turn that takes one process down after the other ends at last; no other fault ends one."""
    prompt = Prompt("s0.1", 0.0, keyed=True, error=error)
    told = Told(0, "default", "s", prompts={prompt.name: prompt})
    left = Left([told], Record(worn={("s", 7): 6}), {}, {}, [])
    assert bool(list(true_end(left))) == blamed
