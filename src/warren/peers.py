"""How sessions speak to one another: names, trust, and the words in which a message reaches a model."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from warren.fields import FieldValueError

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_TRUSTED: Final = 1_000
PeerKind = Literal["message", "request", "response"]


def peer_name(_instance: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    """Refuse what cannot be a name among peers. Raises FieldValueError."""
    if not NAME.fullmatch(value):
        raise FieldValueError(attribute.name, "must be 1 to 64 letters, digits, _ or -")


def peer_names(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    """Refuse names that cannot be, and too many. Raises FieldValueError."""
    if len(value) > MAX_TRUSTED:
        raise FieldValueError(attribute.name, f"must be at most {MAX_TRUSTED} names")
    for index, name in enumerate(value):
        if not NAME.fullmatch(name):
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
    keep_alive: bool = False


@attrs.frozen
class PeerMessage:
    """What one session says to another.

    Attributes:
        kind: a `request` wants a `response`, a `message` does not.
        body: the words; of a request what is wanted, of a response its result.
        request_id: of a request and its response.
        status: of a response.
        params: of a request.
    """

    kind: PeerKind
    body: str
    request_id: str | None = None
    status: str | None = None
    params: Mapping[str, Any] | None = None


@attrs.frozen
class PeerInfo:
    """What a session is told of one that it trusts.

    Attributes:
        name: its name.
        reachable: whether it is there and trusts the session, too.
    """

    name: str
    reachable: bool
