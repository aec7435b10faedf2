"""A service that fails."""

from typing import Any

import attrs
import trio

from tests.transport.sessions import NOW, FakeService
from warren.usage import Usage
from warren.views import Billing, SessionState, SessionView, TurnResult


@attrs.define(eq=False)
class Failing(FakeService):
    """A runtime whose turns fail in a way of the test's choice."""

    failure: Exception = attrs.field(kw_only=True)

    async def read(self, session_id: str) -> SessionView:
        state = SessionState(session_id, NOW, NOW, 0, False, None, "live", {}, "echo")
        return SessionView(state, Billing(0, Usage()))

    async def start_turn(self, session_id: str, prompt: str, **_options: Any) -> TurnResult:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        raise self.failure
