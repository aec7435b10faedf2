"""Answers on the wire to calls whose result is nothing, or no object: its one member has the result."""

from warren.base.nodes import Node
from warren.base.values import frozen
from warren.conversation.inputs import Input
from warren.conversation.memory import MemoryHit
from warren.conversation.peers import PeerInfo


@frozen
class Archived:
    """The session is archived."""

    archived: bool


@frozen
class Delegated:
    """The child session is there, and works.

    Attributes:
        session_id: the child.
    """

    session_id: str


@frozen
class Deleted:
    """The session is deleted."""

    deleted: bool


@frozen
class Interrupted:
    """The turn has ended."""

    interrupted: bool


@frozen
class Decided:
    """The tool call has its answer."""

    decided: bool


@frozen
class Completed:
    """The tool call has its result."""

    completed: bool


@frozen
class Injected:
    """The text is in the session's inbox."""

    injected: bool


@frozen
class Inputs:
    """The inputs that wait, oldest first."""

    inputs: tuple[Input, ...]


@frozen
class Withdrawn:
    """No turn will take the input."""

    withdrawn: bool


@frozen
class PeerMessageSent:
    """The message is in the peer's inbox.

    Attributes:
        message_id: id of the message; the response to a request names it.
    """

    message_id: str


@frozen
class Peers:
    """The peers that a session trusts."""

    peers: tuple[PeerInfo, ...]


@frozen
class MemoryHits:
    """The hits of a search, best first."""

    hits: tuple[MemoryHit, ...]


@frozen
class Forgotten:
    """The number of texts that were removed from the memory."""

    forgotten: int


@frozen
class Resent:
    """The number of deliveries that are attempted again."""

    resent: int


@frozen
class Nodes:
    """The answer to `nodes/list`.

    Attributes:
        nodes: the living processes that have the store open, by their numbers.
    """

    nodes: tuple[Node, ...]


@frozen
class Asked:
    """The answer to `nodes/drain`.

    Attributes:
        asked: the name of the node.
    """

    asked: str
