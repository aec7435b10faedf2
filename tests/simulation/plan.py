"""The plan of one seed, as plain data: the operations of the users and the faults, each with its moment."""

import random
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import attrs

from tests.simulation.kinds import KINDS, LATER, MAKING
from tests.simulation.world import SLOTS

SESSIONS: Final = 8
OPERATIONS: Final = 3
"""Operations on each session, besides the one that makes it."""
LASTS: Final = 3.0
"""Virtual seconds within which the operations begin."""
FAULTS: Final = (
    *("kill", "kill", "leave", "leave", "hang", "away", "all away"),
    *("full", "full to the end", "crash", "cut", "power cut", "clock jumps"),
)
"""The kinds of faults; kinds that are named twice are more frequent."""


@attrs.frozen
class Operation:
    """One operation of a user.

    Attributes:
        number: its number in the plan of the seed, by which it makes its texts and its own draws.
        at: the earliest moment at which it begins, in seconds.
        session: the place of the session.
        kind: the name of its row in the table of kinds.
    """

    number: int
    at: float
    session: int
    kind: str


@attrs.frozen
class Fault:
    """One fault.

    Attributes:
        at: the moment at which it befalls a node.
        kind: the name of its row in the table of faults.
        slot: the slot of the node.
        lasts: seconds until it is over, or until the next node starts in the place of one that has ended.
    """

    at: float
    kind: str
    slot: str
    lasts: float


@attrs.frozen
class Plan:
    """All that happens to the service in one run, but for what the seed draws on the way.

    Attributes:
        seed: draws delays, and everything else that the plan does not say.
        operations: the operations of all users, in the order of their numbers.
        faults: the faults, in the order of their moments.
        nodes: whether the two processes are nodes, else each serves its own sessions alone.
        compacts: whether contexts are compacted often.
    """

    seed: int
    operations: Sequence[Operation] = ()
    faults: Sequence[Fault] = ()
    nodes: bool = False
    compacts: bool = False

    def __str__(self) -> str:
        """Return the plan as source that can be pasted into a test."""
        operations = "".join(f"        {each!r},\n" for each in self.operations)
        faults = "".join(f"        {each!r},\n" for each in self.faults)
        flags = f"nodes={self.nodes}, compacts={self.compacts}"
        return f"Plan(\n    {self.seed},\n    (\n{operations}    ),\n    (\n{faults}    ),\n    {flags},\n)"


def plan_of(seed: int) -> Plan:
    """Draw the plan of a seed."""
    chance = random.Random(f"plan {seed}")  # noqa: S311 - the seed tells all
    steps: list[tuple[float, int, str]] = []
    for session in range(SESSIONS):
        begin = round(chance.uniform(0.0, 0.5), 3)
        steps.append((begin, session, chance.choice(MAKING)))
        moments = (round(chance.uniform(begin, LASTS), 3) for _ in range(OPERATIONS))
        steps += [(moment, session, chance.choice(LATER)) for moment in moments]
    in_order = sorted(steps, key=itemgetter(0, 1))  # what makes a session stays before the rest of the same moment
    operations = tuple(Operation(number, *step) for number, step in enumerate(in_order))
    faults = sorted((_fault(chance) for _ in range(chance.randint(3, 4))), key=lambda fault: fault.at)
    return Plan(seed, operations, tuple(faults), nodes=chance.random() < 0.2, compacts=chance.random() < 0.3)


def _fault(chance: random.Random) -> Fault:
    at, kind = round(chance.uniform(0.1, LASTS), 3), chance.choice(FAULTS)
    return Fault(at, kind, chance.choice(SLOTS), chance.choice((0.1, 0.3, 1.0, 3.0)))


assert not set(MAKING) - set(KINDS)
