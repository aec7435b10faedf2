"""The tables of `docs/security.md` that say what bounds what a client can open, made from the bounds themselves.

`python -m tests.docs.bounds_page docs/security.md` renews them in place.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.docs.parts import with_part
from warren.actors.session.inbox import REMEMBERED
from warren.base.fields import MAX_LABEL_BYTES, MAX_LABELS
from warren.base.values import frozen
from warren.conversation.attachments import MAX_ATTACHMENTS
from warren.conversation.options import MAX_FALLBACK, MAX_HOSTED, MAX_KEY
from warren.conversation.options import MAX_TOOLS as MAX_NAMES
from warren.conversation.triggers import KEPT_DELIVERIES, MAX_PROMPT
from warren.conversation.webhooks import KEPT_DEAD, KEPT_PENDING
from warren.settings.config import Limits
from warren.transport.access.auth import MAX_OFFERED
from warren.transport.access.config import GatewayConfig
from warren.transport.access.head import MAX_HEAD
from warren.transport.access.places import Places
from warren.transport.cli.settings.table import default_of
from warren.transport.gateway.websocket import parts_of
from warren.transport.mcp.resources import MAX_WATCHED
from warren.transport.rest.answers import MAX_UNREAD
from warren.transport.rpc.opened import Opened
from warren.transport.rpc.outbox import MAX_BYTES
from warren.transport.rpc.params import MAX_TOOLS
from warren.transport.rpc.shares import Shares, several
from warren.transport.rpc.uploads import MAX_FILES

BEGIN: Final = "<!-- made from the bounds in tests/docs/bounds_page.py by `make docs` -->\n"
END: Final = "<!-- the end of what is made from the bounds -->\n"
MIB: Final = 1024 * 1024
SOMEBODY: Final = ("tenant", "name")
"""A principal with no limits of its own."""


@frozen
class Shared:
    """A kind of things of which a tenant and a principal have shares.

    Attributes:
        setting: the setting of those of a process.
        shares: the room for them.
        beyond: the effect of one more.
    """

    setting: str
    shares: Shares
    beyond: str


@frozen
class Bound:
    """A bound without shares.

    Attributes:
        things: what is bounded.
        of: what each has so many.
        bound: the number, or the setting that has it.
        beyond: the effect of one more.
    """

    things: str
    of: str
    bound: int | str
    beyond: str


REFUSED: Final = "refused: 429, or 503 if the server is full, with `Retry-After`"
_GATEWAY: Final = GatewayConfig()
_OPENED: Final = Opened()
_PLACES: Final = Places.of(_GATEWAY, several)
SHARED: Final = (
    Shared(
        "serve.max_connections",
        _PLACES.connections,
        "the one that has been longest without a request is closed; if all have sent one, refused with 503. A tenant's "
        "limit [`connections`](operations.md#limits-of-a-tenant) takes the place of its share",
    ),
    Shared(
        "serve.max_http",
        _PLACES.http,
        "a request whose body comes slowly gets 503, the oldest of the address that has most of them first, or the "
        "connection that has been longest without a request is closed, or one whose client leaves 64 KiB unread for "
        f"over a second; if there is none, {REFUSED}. A request that waits, and a stream of events, is one",
    ),
    Shared(
        "limits.mcp_sessions",
        _OPENED.mcp_sessions,
        "an idle session gives way, [the principal's own](mcp.md#sessions) first; if none is idle, refused: 429 or 503",
    ),
    Shared(
        "limits.subscriptions",
        _OPENED.subscriptions,
        f"{REFUSED}. Those over WebSocket, over MCP and as streams (SSE) count together",
    ),
    Shared("limits.watches", _OPENED.watches, f"{REFUSED}. Those over WebSocket and as streams count together"),
    Shared("limits.uploads", _OPENED.room.files, "one that nothing comes of gives way; if there is none, refused"),
    Shared(
        "limits.upload_bytes",
        _OPENED.room.bytes,
        "as before; beyond the bound of the process the oldest of the tenant that has most gives way",
    ),
)
"""The bounds with shares."""
BOUNDS: Final = (
    Bound(
        "requests that are not answered", "WebSocket", "serve.max_in_flight", "refused, except interrupts and decisions"
    ),
    Bound("calls of tools that are not answered", "MCP session", "serve.max_in_flight", "as before"),
    Bound("requests, or streams of events", "HTTP connection", 1, "the next one waits"),
    Bound("streams of events", "MCP session", 1, "refused: 409"),
    Bound("subscriptions", "WebSocket", "serve.max_subscriptions", "refused"),
    Bound("subscriptions", "MCP session", MAX_WATCHED, "refused"),
    Bound("watches", "WebSocket", 1, "takes the place of the first"),
    Bound("tools of the client", "WebSocket", MAX_TOOLS, "refused"),
    Bound("files on their way", "WebSocket", MAX_FILES, "the oldest gives way"),
    Bound("bytes", "file", "limits.max_attachment", "refused"),
    Bound("files", "message", MAX_ATTACHMENTS, "refused"),
    Bound("bytes", "message, or body of a request", "serve.max_message_bytes", "refused"),
    Bound("bytes", "head of a request", MAX_HEAD, "refused: 431"),
    Bound("tokens", "request", MAX_OFFERED, "refused: 401"),
    Bound("bytes of replies that are not read", "WebSocket", MAX_BYTES, "no more requests are read"),
    Bound(
        "bytes of replies that are not read", "process, over WebSocket", "limits.max_unread", "the one with most: 1013"
    ),
    Bound("events that are not read", "WebSocket", "serve.outbox_events", "the others stay in the log"),
    Bound("bytes of events that are not read", "WebSocket", MAX_BYTES, "the others stay in the log"),
    Bound("bytes of large answers that are not read", "process, over HTTP", MAX_UNREAD, "no more are made: 503"),
    Bound("inputs that wait", "session", "limits.inbox", "refused"),
    Bound("children at work", "session", "limits.children", "refused, and the model told so"),
    Bound("levels of children", "session", "limits.child_depth", "refused, and the model told so"),
    Bound("schedules", "tenant", "limits.schedules", "refused"),
    Bound("triggers", "tenant", "limits.triggers", "refused"),
    Bound("characters of a prompt with a body in it", "trigger", MAX_PROMPT, "refused: 422"),
    Bound("deliveries that are kept", "trigger", KEPT_DELIVERIES, "the oldest are forgotten"),
    Bound("commands of [hooks](hooks-from-settings.md) at once", "process", "limits.hook_processes", "wait"),
    Bound("webhooks", "tenant", "limits.webhooks", "refused"),
    Bound("deliveries that wait", "webhook", KEPT_PENDING, "the newest are dead at once"),
    Bound("dead deliveries that are kept", "webhook", KEPT_DEAD, "the oldest are forgotten"),
    Bound("requests that wait", "session", "limits.mailbox", "refused"),
    Bound("labels", "session, and filter of a list", MAX_LABELS, "refused"),
    Bound("bytes of labels", "session, and filter of a list", MAX_LABEL_BYTES, "refused"),
    Bound("models that take over", "session, turn", MAX_FALLBACK, "refused"),
    Bound("names of tools", "session", MAX_NAMES, "refused"),
    Bound("hosted tools", "session, turn", MAX_HOSTED, "refused"),
    Bound("parts of a message", "WebSocket", parts_of(_GATEWAY.max_message_bytes), "the connection ends with 1009"),
    Bound("ended inputs that are remembered", "live session", REMEMBERED, "older ones are looked up in the store"),
    Bound("characters", "idempotency key", MAX_KEY, "refused"),
    Bound("turns that run", "process", "limits.max_sessions", "they wait in turn by tenant, or are refused (`busy`)"),
)
"""All other bounds of what a client can open."""


def renewed(page: str) -> str:
    """Return the page with the tables as the bounds are now."""
    return with_part(page, BEGIN, END, ["\n", *_shared(), "\n", *_others(), "\n"])


def _shared() -> Iterator[str]:
    limits = Limits()
    yield from _head(
        "of a process",
        "setting",
        "number",
        f"a tenant ({limits.tenant_share:.0%})",
        (f"a principal ({limits.principal_share:.0%})"),
        "beyond it",
    )
    for each in SHARED:
        parts = [_number(each.shares.bound(part, SOMEBODY)) for part in ("process", "tenant", "token")]
        yield _row(each.shares.kind, f"`{each.setting}`", *parts, each.beyond)


def _others() -> Iterator[str]:
    yield from _head("what", "of each", "setting", "number", "beyond it")
    for each in BOUNDS:
        setting, number = ("", each.bound) if isinstance(each.bound, int) else (each.bound, default_of(each.bound))
        yield _row(each.things, each.of, setting and f"`{setting}`", _number(number), each.beyond)


def _head(*names: str) -> Iterable[str]:
    return _row(*names), f"|{'---|' * len(names)}\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _number(number: int) -> str:
    """Return a number as people read it; numbers of a million and more are bytes."""
    return f"{number // MIB:,} MiB" if number >= MIB else f"{number:,}"


if __name__ == "__main__":
    PAGE: Final = Path(sys.argv[1])
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
