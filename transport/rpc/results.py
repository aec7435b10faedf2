"""Results of methods for which the domain has no class."""

import attrs

from warren.inputs import Input
from warren.memory import MemoryHit
from warren.peers import PeerInfo
from warren.service import Capabilities


@attrs.frozen
class ServerInfo:
    """The name and the version of the server."""

    name: str
    version: str


@attrs.frozen
class Greeting:
    """The answer to `initialize`.

    Attributes:
        server_info: the server.
        protocol: the version of JSON-RPC.
        methods: the names of all methods.
        capabilities: the optional capabilities that are on.
    """

    server_info: ServerInfo
    protocol: str
    methods: tuple[str, ...]
    capabilities: Capabilities


@attrs.frozen
class Nothing:
    """An empty answer."""


@attrs.frozen
class Archived:
    """The session is archived."""

    archived: bool


@attrs.frozen
class Deleted:
    """The session is deleted."""

    deleted: bool


@attrs.frozen
class Subscribed:
    """The events begin."""

    subscribed: bool


@attrs.frozen
class Unsubscribed:
    """Whether there was a subscription."""

    unsubscribed: bool


@attrs.frozen
class Interrupted:
    """The turn has ended."""

    interrupted: bool


@attrs.frozen
class Decided:
    """The tool call has its answer."""

    decided: bool


@attrs.frozen
class Injected:
    """The text is in the session's inbox."""

    injected: bool


@attrs.frozen
class Inputs:
    """The inputs that wait, oldest first."""

    inputs: tuple[Input, ...]


@attrs.frozen
class Withdrawn:
    """No turn will take the input."""

    withdrawn: bool


@attrs.frozen
class Sent:
    """The message is in the peer's inbox.

    Attributes:
        message_id: id of the message; the response to a request names it.
    """

    message_id: str


@attrs.frozen
class Peers:
    """The peers that a session trusts."""

    peers: tuple[PeerInfo, ...]


@attrs.frozen
class MemoryHits:
    """The hits of a search, best first."""

    hits: tuple[MemoryHit, ...]


@attrs.frozen
class Registered:
    """The number of tools that the call has registered."""

    registered: int
