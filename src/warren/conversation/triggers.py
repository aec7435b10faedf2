"""Triggers: prompts that come when a signed call comes, to a session or to a new one each time. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.fields import LEFT_OUT, FieldValueError, encodable, is_text
from warren.base.signatures import Scheme
from warren.base.tenant_limits import NO_LIMITS, TokenLimits
from warren.base.values import frozen, value
from warren.conversation import codec
from warren.conversation.options import SessionTemplate
from warren.conversation.schedules import Overlap
from warren.conversation.views import DamagedRow

DeliveryState = Literal["fired", "skipped", "failed"]
DELIVERY_STATES: Final[tuple[DeliveryState, ...]] = get_args(DeliveryState)
TriggerState = Literal["active", "paused", "ended"]
MAX_PROMPT: Final = 1024 * 1024
"""Characters that a prompt may have once the body is in it."""
MAX_DELIVERY_ID: Final = 128
"""Characters of the sender's id of a call."""
KEPT_DELIVERIES: Final = 20
"""Deliveries that are kept of a trigger, the newest ones."""
# Braces around anything but a name are text: prompts have JSON in them. `{{body}}` is the text `{body}`.
_PLACE: Final = re.compile(r"\{\{([A-Za-z_][\w.-]*)\}\}|\{([A-Za-z_][\w.-]*)\}", re.ASCII)
_DIGITS: Final = 10
"""Digits that no place in a list has."""
_MEMBER: Final = re.compile(r"body(\.[\w-]+)*", re.ASCII)


class BadBodyError(ValueError):
    """No prompt can be made of the body of a call."""


def is_template(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse prompts with placeholders that are none."""
    is_text(_instance, attribute, value)
    for _, name in _PLACE.findall(value):
        if name and name != "event" and not _MEMBER.fullmatch(name):
            others = f"{{body}}, {{body.a.b}} and {{event}} are there, and {{{{{name}}}}} is that text itself"
            raise FieldValueError(attribute.name, f"has the placeholder {{{name}}}: {others}")


def prompt_of(template: str, body: bytes, event: str | None = None) -> str:
    """Return a prompt with the body of a call in it.

    `{body}` becomes its text, `{body.a.0.b}` a member of its JSON, and `{event}` the kind of the event. A text is put
    in as it is, and any other value as JSON; what is missing, and null, is empty.

    Raises BadBodyError if the prompt would be blank or too long.
    """
    pieces, size = list[str](), 0
    for piece in _pieces(template, body, event or ""):
        size += len(piece)
        if size > MAX_PROMPT:
            raise BadBodyError(f"the prompt would have more than {MAX_PROMPT} characters")
        pieces.append(piece)
    prompt = encodable("".join(pieces))
    if not prompt.strip():
        raise BadBodyError("the prompt would be empty")
    return prompt


def _pieces(template: str, body: bytes, event: str) -> Iterator[str]:
    at, data, parsed = 0, None, False
    for found in _PLACE.finditer(template):
        yield template[at : found.start()]
        at = found.end()
        literal, name = found.groups()
        if literal is not None:
            yield f"{{{literal}}}"
        elif name == "event":
            yield event
        elif name == "body":
            yield body.decode(errors="replace")
        else:
            if not parsed:
                data, parsed = _json_of(body), True
            yield _text_of(_member(data, name.split(".")[1:]))
    yield template[at:]


def _json_of(body: bytes) -> Any:
    try:
        return codec.parse(body)
    except ValueError:
        return None


def _member(data: Any, names: Sequence[str]) -> Any:
    for name in names:
        if isinstance(data, Mapping):
            data = data.get(name)
        elif isinstance(data, list) and name.isdecimal() and len(name) < _DIGITS:
            data = data[int(name)] if int(name) < len(data) else None
        else:
            return None
    return data


def _text_of(found: Any) -> str:
    return "" if found is None else found if isinstance(found, str) else codec.encode_whole(found).decode()


@value
class Delivery:
    """One call of a trigger that was signed with its secret.

    Attributes:
        delivery_id: the sender's id of the call.
        state: `fired`: the prompt is in the inbox of its session. `skipped`: the one before had not ended. `failed`:
            the prompt was refused.
        at: the time at which it was dealt with (UTC).
        session_id: the session that got the prompt.
        problem: the reason why it failed.
    """

    delivery_id: str
    state: DeliveryState
    at: datetime
    session_id: str | None = None
    problem: str | None = None


@value
class Trigger:
    """A prompt that comes when a signed call comes.

    Attributes:
        trigger_id: the id, which is in the path of the calls.
        tenant: the tenant that it belongs to.
        owner: the name of the principal that made it.
        created_at: the time at which it was made (UTC).
        prompt: the template of the prompt, see `prompt_of`.
        secret: the secret with which calls are signed.
        scheme: the way in which they are signed.
        limits: the limits of that principal: its turns are held against them.
        session_id: the session that gets the prompt; None makes a new one each time.
        new_session: the options of new sessions.
        overlap: what happens to a call while the prompt of the one before has not ended.
        paused: whether calls are turned away for now.
        key: the idempotency key under which it was made.
        problem: the reason why it has ended.
    """

    trigger_id: str
    tenant: str
    owner: str
    created_at: datetime
    prompt: str
    secret: str = attrs.field(repr=False)
    scheme: Scheme = "standard"
    limits: TokenLimits = NO_LIMITS
    session_id: str | None = None
    new_session: SessionTemplate | None = None
    overlap: Overlap = "queue"
    paused: bool = False
    key: str | None = None
    problem: str | None = None

    @property
    def state(self) -> TriggerState:
        """Its state."""
        return "paused" if self.paused else "active" if self.problem is None else "ended"

    def changed(self, **changes: Any) -> "Trigger":
        """Return a copy with other values of the named fields."""
        return attrs.evolve(self, **changes)


@frozen
class SignedCall:
    """A call of a trigger, as it came.

    Attributes:
        trigger_id: the trigger, as the path of the call has it.
        headers: its headers, with lower-case names.
        body: its body.
    """

    trigger_id: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)


@value
class Delivered:
    """The answer to a call of a trigger: the same one whenever the call is sent again.

    Attributes:
        delivery_id: the sender's id of the call.
        state: `fired`: the prompt is stored. `skipped`: it was left out, as the one before had not ended. `ping`: the
            call of GitHub only tries the address.
        session_id: the session that has the prompt.
        input_id: the id of the prompt in the session's inbox.
    """

    delivery_id: str
    state: Literal["fired", "skipped", "ping"]
    session_id: str | None = None
    input_id: str | None = None


@value
class DeliveryView:
    """A delivery as callers see it.

    Attributes:
        delivery_id: the sender's id of the call.
        state: `fired`, `skipped` or `failed`; of one that fired `ended` says more.
        at: the time at which it was dealt with (UTC).
        session_id: the session that got the prompt.
        problem: the reason why it failed, or the error of its turn.
        ended: whether its turn has ended; null if that is not known any more.
    """

    delivery_id: str
    state: DeliveryState
    at: datetime
    session_id: str | None = None
    problem: str | None = None
    ended: bool | None = False


@value
class TriggerView:
    """A trigger as callers see it.

    Attributes:
        trigger_id: the id. Signed calls go to `POST /triggers/ID`.
        state: `active`, `paused` or `ended`.
        prompt: the template of the prompt.
        session_id: the session that gets it; null for a new one each time.
        new_session: the options of new sessions.
        scheme: the way in which calls are signed.
        overlap: what happens to a call while the prompt of the one before has not ended.
        created_at: the time at which it was made (UTC).
        owner: the name of the principal that made it.
        problem: the reason why it has ended.
        deliveries: its newest deliveries, the newest first.
        secret: the secret, in the answers to `trigger/create` and to a change that sets a new one, and nowhere else.
    """

    trigger_id: str
    state: TriggerState
    prompt: str
    session_id: str | None
    new_session: SessionTemplate | None
    scheme: Scheme
    overlap: Overlap
    created_at: datetime
    owner: str
    problem: str | None
    deliveries: tuple[DeliveryView, ...] = ()
    secret: str | None = attrs.field(default=None, repr=False, metadata=LEFT_OUT)


@value
class TriggerPage:
    """A page of triggers.

    Attributes:
        triggers: the page.
        damaged: damaged rows of the page; they are missing in `triggers`.
    """

    triggers: tuple[TriggerView, ...]
    damaged: tuple[DamagedRow, ...] = ()


def key_of(trigger_id: str, delivery_id: str) -> str:
    """Return the idempotency key of a delivery: however often the call is sent, and to whichever node, it fires once.

    Statements make the same text of the columns, to find the prompt of a delivery.
    """
    return f"trigger/{trigger_id}/{delivery_id}"
