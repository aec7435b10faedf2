"""The health of workers as one."""

import attrs

from warren.health import LoopHealth, ProjectorHealth, StoreHealth
from warren.service import Health
from warren.transport.cluster.health import together

OWN = Health("ok", 3, 1, 10, StoreHealth("ok"), ProjectorHealth("ok", projecting=False, behind=None))
PROJECTING = ProjectorHealth("ok", projecting=True, behind=4)


def test_counts_are_summed() -> None:
    """And the projector is that of the process that writes the files."""
    other = attrs.evolve(OWN, live_sessions=5, projector=PROJECTING, loop=LoopHealth("ok", 7.0))
    assert together(OWN, [other]) == Health(
        "ok", 8, 2, 20, StoreHealth("ok"), PROJECTING, loop=LoopHealth("ok", 7.0), processes=2
    )


def test_the_worst_part_counts() -> None:
    """Whichever process has it."""
    refused = StoreHealth("failed", "the disk is full")
    found = together(OWN, [attrs.evolve(OWN, status="failed", store=refused), OWN])
    assert (found.status, found.store, found.processes) == ("failed", refused, 3)


def test_a_process_that_does_not_answer_is_no_good_sign() -> None:
    """The others are told of all the same."""
    found = together(OWN, [None, OWN])
    assert (found.status, found.live_sessions, found.processes) == ("degraded", 6, 2)
