"""The checks blame what breaks a promise, and nothing else."""

import pytest

from tests.simulation.checks import Left, true_end
from tests.simulation.record import Record
from tests.simulation.users import Prompt, Told
from warren.base.errors import AgentError, WarrenError
from warren.settings.config import Limits

MOST = Limits().resumptions
DEATHS = "a process ended 6 times during the turn: it is not gone on with (limits.resumptions)"


@pytest.mark.parametrize(
    ("losses", "error", "blamed"),
    [
        (MOST + 1, AgentError(DEATHS, cause="crash"), False),
        (MOST, AgentError(DEATHS, cause="crash"), True),  # no turn can have seen so many
        (MOST + 1, AgentError("a bug", cause="crash"), True),
        (MOST + 1, AgentError("not known", cause="outcome_unknown"), True),
        (0, AgentError("no", cause="cancelled"), False),
    ],
)
def test_a_death_is_no_end_of_a_key_unless_there_were_too_many(
    losses: int, error: WarrenError, *, blamed: bool
) -> None:
    """A turn that takes one process down after the other ends at last; no other fault ends one."""
    told = Told(0, "default", prompts={"s0.1": Prompt("s0.1", 0.0, keyed=True, error=error)})
    left = Left([told], Record(losses=losses), {}, {}, [])
    assert bool(list(true_end(left))) == blamed
