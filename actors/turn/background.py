"""Tool calls that run in the background, as the turn sees them that makes them."""

from collections.abc import Mapping
from typing import Any, Protocol

from warren.base.values import frozen
from warren.conversation.messages import ToolUseBlock
from warren.conversation.options import NO_OPTIONS, TurnOptions
from warren.conversation.waits import Wait
from warren.models.tools import Tool


@frozen
class Origin:
    """The call and its turn, for the time after the turn; `Wait.data` of the reason `background` is its JSON.

    Attributes:
        turn: the number of the turn in the session.
        number: the number of the call in the turn.
        call_id: the model's id of the call.
        prompt_key: the idempotency key of the prompt that began the turn; None if it has none.
        hops: messages of peers in a row, up to the one that began the turn.
        payer: the client whose limit of tokens the turn counts for; empty if it has none.
        options: the options of a turn that the result begins.
    """

    turn: int
    number: int
    call_id: str
    prompt_key: str | None = None
    hops: int = 0
    payer: str = ""
    options: TurnOptions = NO_OPTIONS


class Background(Protocol):
    """Runs calls of a session in the background. No method waits."""

    def refusal(self, more: int) -> str | None:
        """Return the reason, for the model, if no call can run besides those that run and `more`; else None."""

    def wait_for(self, call: ToolUseBlock, tool: Tool, origin: Origin, handle: Mapping[str, Any] | None = None) -> Wait:
        """Return the wait for the result of a call, which is to be stored before the call begins.

        Args:
            call: the call.
            tool: its tool.
            origin: what is kept of the call and its turn.
            handle: that of `Handed`, if the tool has handed the work of the call over.
        """

    def start(self, wait: Wait, tool: Tool, bound: Mapping[str, Any]) -> None:
        """Begin a call with its checked arguments. Its result becomes an input of the session."""
