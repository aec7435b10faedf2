"""What is said to a session other than by starting a turn: it waits in the session's inbox until a turn takes it."""

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
    """What holds for one turn alone; None takes the session's."""

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
    """One thing that waits to be said to a session.

    Attributes:
        input_id: its id.
        kind: `queue` begins a turn after those before it; `steer` enters the running turn at its next step, or begins
            one; `peer` is another session's message; `context` waits for a turn, and is no one's words.
        text: what the model will read.
        created_at: when it was taken in (UTC).
        key: the sender's own, by which a second sending is known.
        source: who says it, where that is not the user.
        starts: whether it begins a turn where none runs.
        options: of the turn that it begins.
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
