"""The judge of a failover run finds what it is there to find, and a plan that cannot be carried out is refused."""

from typing import Any

import attrs
import pytest

from warren.base.fields import FieldValueError
from warren.transport.load.failover.ledger import Acknowledged, SessionLedger, Stored, judge
from warren.transport.load.failover.plan import FAULTS, FailoverPlan

GOOD = Stored(("a", "b"), (1, 3, 6, 1_000_007), (1, 6, 1_000_007))


def ledger(
    *prompts: str, followed: tuple[int, ...] = (1, 2, 3, 6, 8, 1_000_007), gaps: tuple[int, ...] = ()
) -> SessionLedger:
    """Return what users and the follower of a session have seen."""
    turns = [Acknowledged(prompt, 0.0, float(index), 0) for index, prompt in enumerate(prompts)]
    return SessionLedger("s", turns, list(followed), list(gaps))


def test_a_run_that_kept_its_promises_is_good() -> None:
    """A turn that was not acknowledged may be stored all the same, and events be shown that were never stored."""
    assert judge([(ledger("a", "b"), GOOD)]).good
    assert judge([(ledger("a"), GOOD)]).good


@pytest.mark.parametrize(
    ("seen", "stored", "found"),
    [
        (ledger("a", "b", "c"), GOOD, {"lost": ("c",)}),
        (ledger("a", "b"), attrs.evolve(GOOD, prompts=("a", "b", "a")), {"twice": ("a",)}),
        (ledger("b", "a"), GOOD, {"out_of_order": ("s",)}),
        (
            ledger("a", "b", followed=(1, 6)),
            GOOD,
            {"numbers": ("s: the follower has not got the stored events 1000007 behind event 6, and was not told so",)},
        ),
        (
            ledger("a", "b", followed=(1, 9, 1_000_007), gaps=(1,)),
            attrs.evolve(GOOD, ends=(1, 6, 7, 1_000_007)),
            {"numbers": ("s: the follower missed the stored events 6 to 7 behind event 1, and was told so",)},
        ),
        (
            ledger("a", "b", followed=(1, 6, 6, 1_000_007)),
            GOOD,
            {"numbers": ("s: the follower has event 6 after event 6",)},
        ),
        (
            ledger("a", "b"),
            attrs.evolve(GOOD, numbers=(1, 6, 3, 1_000_007)),
            {"numbers": ("s: the log has event 3 after event 6",)},
        ),
    ],
)
def test_a_broken_promise_is_named(seen: SessionLedger, stored: Stored, found: dict[str, Any]) -> None:
    """And it alone."""
    verdict = judge([(seen, stored)])
    expected = {"lost": (), "twice": (), "out_of_order": (), "numbers": ()} | found
    assert {name: getattr(verdict, name) for name in expected} == expected
    assert not verdict.good


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"store": "folder", "faults": ("kill", "blip")}, "faults"),
        ({"store": "folder", "faults": ("answers",)}, "faults"),
        ({"store": "folder", "faults": ("flood",)}, "faults"),
        ({"store": "folder", "faults": ()}, "faults"),
        ({"store": "postgresql:///x", "nodes": 1}, "nodes"),
        ({"store": "postgresql:///x", "rounds": 0}, "rounds"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(settings: dict[str, Any], field: str) -> None:
    """By the name of the setting."""
    with pytest.raises(FieldValueError) as refused:
        FailoverPlan(**settings)
    assert refused.value.field == field


def test_the_faults_of_a_plan_are_those_that_its_store_can_have() -> None:
    """By default a database has all of them, and a folder those that need no wire to a database."""
    assert FailoverPlan("postgresql:///test").faults == FAULTS
    assert FailoverPlan("folder").faults == ("kill", "stop", "links")
