"""What methods answer, where the domain has no class for it."""

import attrs

from warren.inputs import Input
from warren.memory import MemoryHit
from warren.peers import PeerInfo
from warren.service import Capabilities


@attrs.frozen
class ServerInfo:
    """Who answers: the product's name and version."""

    name: str
    version: str


@attrs.frozen
class Greeting:
    """Of `initialize`.

    Attributes:
        server_info: who answers.
        protocol: the version of JSON-RPC.
        methods: every method that can be called, by name.
        capabilities: which optional capabilities are on.
    """

    server_info: ServerInfo
    protocol: str
    methods: tuple[str, ...]
    capabilities: Capabilities


@attrs.frozen
class Nothing:
    """Of a method whose answer says only that it was done."""


@attrs.frozen
class Archived:
    """Of `session/archive`."""

    archived: bool


@attrs.frozen
class Deleted:
    """Of `session/delete`."""

    deleted: bool


@attrs.frozen
class Subscribed:
    """Of `session/subscribe`: the events begin."""

    subscribed: bool


@attrs.frozen
class Unsubscribed:
    """Of `session/unsubscribe`: whether there was a subscription."""

    unsubscribed: bool


@attrs.frozen
class Interrupted:
    """Of `turn/interrupt`: the turn has ended."""

    interrupted: bool


@attrs.frozen
class Decided:
    """Of `tool/approve`: the call goes on, or is refused."""

    decided: bool


@attrs.frozen
class Injected:
    """Of `session/inject_context`: it is in the session's inbox."""

    injected: bool


@attrs.frozen
class Inputs:
    """Of `session/inputs`: what waits, in the order in which it was taken in."""

    inputs: tuple[Input, ...]


@attrs.frozen
class Withdrawn:
    """Of `session/withdraw`: no turn will take it."""

    withdrawn: bool


@attrs.frozen
class Sent:
    """Of `peer/send`: it is in the peer's inbox.

    Attributes:
        message_id: its id, by which a request is answered.
    """

    message_id: str


@attrs.frozen
class Peers:
    """Of `peer/list`: whom the session trusts."""

    peers: tuple[PeerInfo, ...]


@attrs.frozen
class MemoryHits:
    """Of `memory/search`: the best one first."""

    hits: tuple[MemoryHit, ...]


@attrs.frozen
class Registered:
    """Of `tools/register`: how many tools the call brought."""

    registered: int
