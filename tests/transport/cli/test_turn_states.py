"""`warren sessions show`: the state of a session with a turn that has not ended."""

from datetime import UTC, datetime

import pytest

from warren.conversation.records import SessionRecord
from warren.conversation.views import TurnView, WaitingCall, view_of
from warren.transport.cli.terminal.tables import facts

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CALL = WaitingCall("c1", "shell", "approval", NOW)


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        (None, "stored"),
        (TurnView("parked", NOW), "stored, turn parked since 2026-01-02 03:04:05"),
        (TurnView("running", NOW, 1), "stored, turn running since 2026-01-02 03:04:05, resumed"),
        (
            TurnView("waiting", NOW, 2, (CALL, CALL)),
            "stored, turn waiting for approval since 2026-01-02 03:04:05, resumed 2 times",
        ),
    ],
)
def test_the_state_of_a_session_has_that_of_its_turn(turn: TurnView | None, shown: str) -> None:
    """With what it waits for, since when it runs, and how often it was gone on with."""
    view = view_of(SessionRecord("s", NOW, NOW, "m"), live=False, active=False, turn=turn)
    assert dict(facts(view))["state"] == shown
