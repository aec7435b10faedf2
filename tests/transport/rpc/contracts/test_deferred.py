"""The prompt of a deferred session waits until a turn has taken it."""

import trio

from warren import Config, open_supervisor
from warren.calls.turns import TurnCall
from warren.conversation.views import TurnResult
from warren.transport.rpc.contracts.meerkat.methods import create, start_turn
from warren.transport.rpc.contracts.meerkat.params import CreateParams
from warren.transport.rpc.methods import Caller, Host, RunTurn


class Direct(Caller):
    """A caller without events."""

    async def stream(self, _session_id: str | None, run: RunTurn) -> TurnResult:
        """Run the turn."""
        return await run(None)

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:  # noqa: ARG002 - as Caller has it
        """Send no events."""
        return 0

    def unsubscribe(self, session_id: str) -> bool:  # noqa: ARG002 - as Caller has it
        """Send no events."""
        return False


class Slow(Direct):
    """A caller whose turn does not get to begin."""

    async def stream(self, _session_id: str | None, run: RunTurn) -> TurnResult:
        """Wait for a minute."""
        await trio.sleep(60)
        return await run(None)


async def test_a_client_that_leaves_before_its_turn_begins_leaves_the_prompt() -> None:
    """The call is cancelled after the prompt was taken out of the inbox: the next turn still begins with it."""
    async with open_supervisor(Config(model="echo")) as service:
        host = Host(service)
        session_id = (await create(host, Direct(), CreateParams(prompt="first", initial_turn="deferred"))).session_id
        with trio.move_on_after(0.1):
            await start_turn(host, Slow(), TurnCall(session_id, "lost"))
        assert [each.text for each in await service.inputs(session_id)] == ["first"]
        result = await start_turn(host, Direct(), TurnCall(session_id, "second"))
        assert result.text == "first\n\nsecond"
        assert await service.inputs(session_id) == ()
