"""Those who give calls their results from outside, or decide about them, and what they are told."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from tests.simulation.clock import sleep
from tests.simulation.record import AGAIN
from tests.simulation.users import Prompt, User, call, tried
from warren.base.errors import ErrorCode, WarrenError

BEYOND: Final = 1.0
"""Seconds after the end of a prompt within which a call of it in the background gets its token."""
REFUSALS: Final = (ErrorCode.INVALID_PARAMS, ErrorCode.SESSION_NOT_FOUND, ErrorCode.SESSION_NOT_RUNNING)


@attrs.frozen
class Giver:
    """Gives the calls of one prompt their results.

    Attributes:
        after: seconds after the moment at which the call has its token.
        words: for each sender the result that it gives; all give theirs at once.
        kills: whether the process of the call is killed first.
    """

    after: float = 0.0
    words: Sequence[str] = ("done",)
    kills: bool = False

    async def serve(self, user: User, prompt: Prompt) -> None:
        """Give results until the end of the prompt is known, and to calls in the background for a while after that."""
        record, served = user.world.record, set[str]()
        async with trio.open_nursery() as senders:
            while prompt.ended is None or (not served and trio.current_time() < prompt.ended + BEYOND):
                for session_id, call_id in list(record.tokens):
                    mine = session_id == user.session_id and call_id.startswith(f"{user.name}-")
                    if mine and call_id not in served:
                        served.add(call_id)
                        senders.start_soon(self._give, user, call_id)
                await sleep(0.02)

    async def _give(self, user: User, call_id: str) -> None:
        record = user.world.record
        if self.kills and AGAIN not in call_id:  # a turn that is run again and again may not die each time
            name = next((each.node for each in reversed(record.runs) if each.call_id == call_id), "")
            if (node := user.world.nodes.get(name)) is not None:
                user.note(f"kills {name}")
                node.kill()
        await sleep(self.after)
        async with trio.open_nursery() as senders:
            for word in self.words:
                senders.start_soon(give, user, call_id, f"{call_id} is {word}")


async def give(user: User, call_id: str, result: str) -> None:
    """Give a call a result until it is taken or refused."""
    token = user.world.record.tokens[user.session_id, call_id]
    outcome = await tried(user.read(call("complete_tool", token=token, result=result)))
    error = outcome if isinstance(outcome, WarrenError) else None
    user.note(f"{result}: {'taken' if error is None else error.message}")
    user.told.given.setdefault(call_id, []).append((result, error))
    if error is not None and error.code not in REFUSALS:
        user.world.record.blame(f"nobody expected {error!r} of the result of {call_id}")


async def give_again(user: User) -> None:
    """Give each result again: whoever gives one again is told the same."""
    for call_id, given in list(user.told.given.items()) if user.told.durable else ():
        for result, error in list(given):
            await give(user, call_id, result)
            again = given[-1][1]
            if (again is None) != (error is None):
                user.world.record.blame(f"{result!r} was given again, and the answer was {again!r}, not {error!r}")


async def decide(user: User, call_id: str, decision: str, *, remember: bool = False) -> None:
    """Decide about a call until the decision is taken or refused."""
    user.told.remembered += remember
    answer = call("approve_tool", session_id=user.session_id, call_id=call_id, decision=decision, remember=remember)
    outcome = await tried(user.read(answer))
    error = outcome if isinstance(outcome, WarrenError) else None
    user.note(f"{call_id} {decision}: {'taken' if error is None else error.message}")
    user.told.decided.setdefault(call_id, []).append((decision, error))
    if error is not None and error.code not in REFUSALS:
        user.world.record.blame(f"nobody expected {error!r} of the decision about {call_id}")


async def decide_again(user: User) -> None:
    """Send each decision again: whoever sends one again is told the same."""
    for call_id, decided in list(user.told.decided.items()) if user.told.durable else ():
        for decision, error in list(decided):
            await decide(user, call_id, decision)
            again = decided[-1][1]
            if (again is None) != (error is None):
                user.world.record.blame(
                    f"{call_id} got {decision!r} again, and the answer was {again!r}, not {error!r}"
                )
