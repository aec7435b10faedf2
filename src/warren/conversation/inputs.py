"""Inputs: prompts, context and messages of peers that wait in a session's inbox until a turn takes them."""

from datetime import UTC, datetime
from typing import Literal

from warren.base.ids import new_session_id
from warren.base.values import frozen
from warren.conversation.attachments import Attachment
from warren.conversation.delegation import NOTICES, ChildEnd
from warren.conversation.events import InputKind
from warren.conversation.options import NO_OPTIONS, TurnOptions

AnyKind = Literal["queue", "steer", "context", "peer", "lend", "answer", "look", "cancel", "archive", "delete"]
"""The kinds of inputs, and those of notices."""
Entering = Literal["before", "next", "last"]
"""The moment at which inputs enter a turn.

`before`: before the prompt, for the inputs that came before it. `next`: before the next step, for all. `last`: where
the turn would end, for all unless context alone waits, which needs no answer.
"""


@frozen
class Input:
    """One input in a session's inbox.

    Attributes:
        input_id: the id.
        kind: `queue` begins a turn after the inputs before it; `steer` enters the running turn at its next step, or
            begins one; `peer` is another session's message; `context` is a text of the host, which begins no turn. A
            notice is no prompt, and no model reads it: the session itself does as it says.
        text: the text for the model.
        created_at: time at which the inbox took it (UTC).
        key: the sender's idempotency key; a second input with the key is not taken.
        source: name of the sender; None is the user.
        starts: whether it begins a turn if none runs.
        options: the options of the turn that it begins.
        attachments: the files of a prompt.
        payer: the client whose limit of tokens the turn counts for that it begins; empty if it has none.
        hops: messages of peers in a row, this one included, since a user's prompt; 0 for what is no message of a peer.
        not_before: time before which no turn takes it (UTC); null for none.
        end: the end of a child that an `answer` tells of, or its beginning of which a `lend` does.
        request_id: the request that an `answer` is the response to, if it is one of a peer.
    """

    input_id: str
    kind: AnyKind
    text: str
    created_at: datetime
    key: str | None = None
    source: str | None = None
    starts: bool = True
    options: TurnOptions = NO_OPTIONS
    attachments: tuple[Attachment, ...] = ()
    payer: str = ""
    hops: int = 0
    not_before: datetime | None = None
    end: ChildEnd | None = None
    request_id: str | None = None

    @property
    def shown_kind(self) -> InputKind:
        """The kind of an input that is no notice: those are kept apart, and no turn takes them."""
        return self.kind  # type: ignore[return-value]

    @property
    def is_notice(self) -> bool:
        """Whether it is no prompt, and no text for a model."""
        return self.kind in NOTICES


def looking() -> Input:
    """Return the notice for a session that may not have heard how its children have ended."""
    return Input(new_session_id(), "look", "", datetime.now(UTC), starts=False)


def retiring(kind: Literal["archive", "delete"]) -> Input:
    """Return the notice for a session whose parent is archived or deleted."""
    return Input(new_session_id(), kind, "", datetime.now(UTC), starts=False)


@frozen
class Numbered:
    """An input and its place in the order in which the inbox took them."""

    number: int
    input: Input
