"""Inputs: prompts, context and messages of peers that wait in a session's inbox until a turn takes them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import attrs

from warren.budget import Budget
from warren.categories import Gates, Switches
from warren.events import InputKind
from warren.values import value

TurnMode = Literal["busy", "queue", "steer"]
MAX_KEY: Final = 200
"""Characters of an idempotency key."""


@value
class TurnOptions:
    """The options of one turn. None takes the session's option."""

    model: str | None = None
    provider: str | None = None
    max_tokens: int | None = None
    budget: Budget | None = None
    overrides: Switches | None = None
    approvals: Gates | None = None
    output_schema: Mapping[str, Any] | None = None
    structured_output_retries: int | None = None


DEFAULTS: Final = TurnOptions()


@attrs.frozen
class Input:
    """One input in a session's inbox.

    Attributes:
        input_id: the id.
        kind: `queue` begins a turn after the inputs before it; `steer` enters the running turn at its next step, or
            begins one; `peer` is another session's message; `context` is a text of the host, which begins no turn.
        text: the text for the model.
        created_at: time at which the inbox took it (UTC).
        key: the sender's idempotency key; a second input with the key is not taken.
        source: name of the sender; None is the user.
        starts: whether it begins a turn if none runs.
        options: the options of the turn that it begins.
    """

    input_id: str
    kind: InputKind
    text: str
    created_at: datetime
    key: str | None = None
    source: str | None = None
    starts: bool = True
    options: TurnOptions = attrs.field(factory=TurnOptions)


@attrs.frozen
class Numbered:
    """An input and its place in the order in which the inbox took them."""

    number: int
    input: Input
