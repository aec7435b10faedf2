"""How sessions speak to one another: names, trust, and the words in which a message reaches a model."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import attrs

from warren.fields import FieldValueError, OneOf, is_flag, is_text, is_text_or_none, not_blank

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_TRUSTED: Final = 1_000
PeerKind = Literal["message", "request", "response"]


def peer_name(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse what cannot be a name among peers. Raises FieldValueError."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise FieldValueError(attribute.name, "must be 1 to 64 letters, digits, _ or -")


def peer_names(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse names that cannot be, and too many. Raises FieldValueError."""
    if type(value) is not tuple:
        raise FieldValueError(attribute.name, "must be a tuple of names")
    if len(value) > MAX_TRUSTED:
        raise FieldValueError(attribute.name, f"must be at most {MAX_TRUSTED} names")
    for index, name in enumerate(value):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise FieldValueError(f"{attribute.name}[{index}]", "must be 1 to 64 letters, digits, _ or -")


@attrs.frozen
class Peer:
    """A session among its peers.

    Attributes:
        name: by which the others speak to it; no two sessions that are not archived have the same.
        trusts: the names whose messages it takes, and to whom it may send.
        keep_alive: whether a message begins a turn where none runs; else it waits for the next turn.
    """

    name: str = attrs.field(validator=peer_name)
    trusts: tuple[str, ...] = attrs.field(default=(), validator=peer_names)
    keep_alive: bool = attrs.field(default=False, validator=is_flag)


@attrs.frozen
class PeerMessage:
    """A message of one session to another. Raises ValueError that names the field if it could not be sent.

    Attributes:
        kind: a `request` wants a `response`, a `message` does not.
        body: the words; of a request what is wanted, of a response its result.
        request_id: of a response: the request that it answers.
        status: of a response.
        params: of a request.
    """

    kind: PeerKind = attrs.field(validator=OneOf(get_args(PeerKind)))
    body: str = attrs.field(validator=attrs.validators.and_(is_text, not_blank))
    request_id: str | None = attrs.field(default=None, validator=[is_text_or_none, not_blank])
    status: str | None = attrs.field(default=None, validator=[is_text_or_none, not_blank])
    params: Mapping[str, Any] | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse a response without what it answers, and what is not of its kind. Raises FieldValueError."""
        for name in ("request_id", "status"):
            if (self.kind == "response") != (getattr(self, name) is not None):
                problem = "is required for a response" if self.kind == "response" else "is for a response"
                raise FieldValueError(name, problem)
        if self.params is not None and self.kind != "request":
            raise FieldValueError("params", "is for a request")
        if self.params is not None and not isinstance(self.params, Mapping):
            raise FieldValueError("params", "must be an object")


@attrs.frozen
class PeerInfo:
    """What a session is told of one that it trusts.

    Attributes:
        name: its name.
        reachable: whether it is there and trusts the session, too.
    """

    name: str
    reachable: bool
