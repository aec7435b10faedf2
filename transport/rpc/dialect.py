"""The protocol of a connection: the methods that clients can call, and the messages that events become."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from warren.base.values import frozen
from warren.calls.base import SessionRef
from warren.conversation import codec
from warren.conversation.events import Envelope, StreamTruncated
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.methods import METHODS, Method

EVENT: Final = "session/event"
UNSUBSCRIBED: Final = "session/unsubscribed"
CHANGED: Final = "session/changed"
HEAD: Final = b'{"jsonrpc":"2.0","method":"%b","params":' % EVENT.encode()
"""The beginning of the notification of an event, before the envelope."""

logger: Final = logging.getLogger(__name__)


class Dialect(Protocol):
    """The protocol of one connection. The endpoint and the feeds are the same for all protocols."""

    @property
    def methods(self) -> Mapping[str, Method[Any, Any]]:
        """The methods that the client can call, by name."""
        ...

    @property
    def frames(self) -> Callable[[Envelope], Sequence[bytes]] | None:
        """Makes the messages that report an event, none or several, and never raises.

        None if each event is the one notification of `frame_of`, whose bytes all connections share.
        """
        ...

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return the messages that report a subscription which ended without a request of the client. Never raises."""
        ...


@frozen
class Native:
    """Warren's own protocol: `docs/protocol.md` describes it."""

    methods: Mapping[str, Method[Any, Any]] = METHODS
    frames: None = None

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return one notification."""
        return (jsonrpc.notification(UNSUBSCRIBED, SessionRef(session_id)),)


def frame_of(envelope: Envelope) -> bytes:
    """Return an event as one notification; if JSON cannot hold the event, report it as missing. Never raises.

    The notification is made once for each envelope.
    """
    frame = envelope.frame
    if frame is None:
        try:
            frame = HEAD + codec.encode_envelope(envelope) + b"}"
        except Exception:
            logger.exception("session %s: event %d cannot be encoded", envelope.session_id, envelope.seq)
            frame = HEAD + codec.encode_envelope(missing(envelope)) + b"}"
        object.__setattr__(envelope, "frame", frame)
    return frame


def missing(envelope: Envelope) -> Envelope:
    """Return the event that replaces one that cannot be sent: a StreamTruncated with its number."""
    before = (envelope.first_seq or envelope.seq) - 1
    marker = StreamTruncated(envelope.seq - before, before)
    return attrs.evolve(envelope, seq=before, event=marker, first_seq=None)
