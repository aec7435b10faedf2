"""Messages between sessions: the names of peers, their trust, and the messages."""

import re
from typing import Any, Final, Literal

import attrs

from warren.base.fields import FieldValueError, is_flag
from warren.base.values import frozen

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_TRUSTED: Final = 1_000
PeerKind = Literal["message", "request", "response"]


def peer_name(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that cannot be the name of a peer. Raises FieldValueError."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise FieldValueError(attribute.name, "must be 1 to 64 letters, digits, _ or -")


def peer_names(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse values that are not a tuple of names, and more than `MAX_TRUSTED` names. Raises FieldValueError."""
    if type(value) is not tuple:
        raise FieldValueError(attribute.name, "must be a tuple of names")
    if len(value) > MAX_TRUSTED:
        raise FieldValueError(attribute.name, f"must be at most {MAX_TRUSTED} names")
    for index, name in enumerate(value):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise FieldValueError(f"{attribute.name}[{index}]", "must be 1 to 64 letters, digits, _ or -")


@frozen
class Peer:
    """The name of a session among its peers, and its trust.

    Attributes:
        name: the name to which others send. It is unique among the sessions that are not archived.
        trusts: names of the peers whose messages it takes, and to which it may send.
        keep_alive: whether a message begins a turn if none runs; else it waits for the next turn.
    """

    name: str = attrs.field(validator=peer_name)
    trusts: tuple[str, ...] = attrs.field(default=(), validator=peer_names)
    keep_alive: bool = attrs.field(default=False, validator=is_flag)


@frozen
class PeerInfo:
    """A peer that a session trusts.

    Attributes:
        name: the name of the peer.
        reachable: whether a session of that name exists and trusts the first session too.
    """

    name: str
    reachable: bool
