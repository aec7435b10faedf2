"""Results of methods for which the domain has no class."""

from warren.base.values import frozen
from warren.calls.facade import Capabilities
from warren.conversation.attachments import Attachment


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
class Registered:
    """The number of tools that the call has registered."""

    registered: int
