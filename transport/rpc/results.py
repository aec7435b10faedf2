"""Results of methods for which the domain has no class."""

from warren.base.nodes import Node
from warren.base.values import frozen
from warren.calls.service import Capabilities
from warren.conversation.attachments import Attachment
from warren.conversation.inputs import Input
from warren.conversation.memory import MemoryHit
from warren.conversation.peers import PeerInfo


@frozen
class ServerInfo:
    """The name and the version of the server."""

    name: str
    version: str


@frozen
class CallerInfo:
    """The caller, as the server knows it by its token.

    Attributes:
        tenant: the tenant whose sessions it finds.
        name: its name within the tenant.
        scopes: its rights.
    """

    tenant: str
    name: str
    scopes: tuple[str, ...]


@frozen
class Greeting:
    """The answer to `initialize`.

    Attributes:
        server_info: the server.
        protocol: the version of JSON-RPC.
        methods: the names of all methods.
        capabilities: the optional capabilities that are on.
        caller: the caller, with its rights.
        max_message_bytes: bytes that a message of the client may have; None if it has no bound.
    """

    server_info: ServerInfo
    protocol: str
    methods: tuple[str, ...]
    capabilities: Capabilities
    caller: CallerInfo | None = None
    max_message_bytes: int | None = None


@frozen
class Nothing:
    """An empty answer."""


@frozen
class FileReceived:
    """The piece is here.

    Attributes:
        received: bytes of the file that are here now.
        attachment: the file, once it is whole. A prompt of this connection has it by its hash: `{"sha256": …}`.
    """

    received: int
    attachment: Attachment | None = None


@frozen
class Archived:
    """The session is archived."""

    archived: bool


@frozen
class Deleted:
    """The session is deleted."""

    deleted: bool


@frozen
class Subscribed:
    """The events begin.

    Attributes:
        after_seq: the number after which they begin. If they had begun before, and the request has no number, it is
            that of the newest event.
    """

    subscribed: bool
    after_seq: int


@frozen
class Watching:
    """The changes of the list begin: the sessions whose turn runs are the first."""

    watching: bool


@frozen
class Unwatched:
    """Whether there was a watch."""

    unwatched: bool


@frozen
class Unsubscribed:
    """Whether there was a subscription."""

    unsubscribed: bool


@frozen
class Interrupted:
    """The turn has ended."""

    interrupted: bool


@frozen
class Decided:
    """The tool call has its answer."""

    decided: bool


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
class Registered:
    """The number of tools that the call has registered."""

    registered: int


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
