"""JSON-RPC on the standard streams: one client, one message a line."""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from warren.base.fields import not_negative, positive
from warren.base.values import frozen
from warren.calls.facade import RuntimeService
from warren.settings.config import Config, Limits
from warren.transport.rpc.dialect import Dialect, Native
from warren.transport.rpc.endpoint import Endpoint, EndpointBounds
from warren.transport.rpc.lines import LineChannel
from warren.transport.rpc.methods import Host
from warren.transport.rpc.session_client import serve_client
from warren.transport.rpc.settings import Settings, public_settings

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2


@frozen
class StdioConfig:
    """Bounds on the client of a pipe. Raises FieldValueError for a bad value.

    Attributes:
        max_message_bytes: bytes of a line; a longer one is skipped and answered with an error.
        max_in_flight: requests that may be unanswered.
        max_subscriptions: sessions that the client may follow.
        outbox_events: events that may wait for the client; further events stay in the log until the client reads.
        close_timeout: seconds for the last messages to leave if the client stops reading.
        linger: seconds for which requests may run on after the end of the input.
        runtime: the settings of the runtime, for `config/get`, which shows no secrets and no prompts.
    """

    max_message_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=positive)
    max_in_flight: int = attrs.field(default=256, validator=positive)
    max_subscriptions: int = attrs.field(default=1_000, validator=positive)
    outbox_events: int = attrs.field(default=10_000, validator=positive)
    close_timeout: float = attrs.field(default=2.0, validator=not_negative)
    linger: float = attrs.field(default=10.0, validator=not_negative)
    runtime: Config | None = None

    def public(self) -> Settings:
        """Return the settings that the client may see."""
        return public_settings(self.runtime, stdio=attrs.asdict(self, filter=attrs.filters.exclude("runtime")))


async def serve_stdio(
    service: RuntimeService,
    config: StdioConfig,
    streams: tuple[trio.abc.ReceiveStream, trio.abc.SendStream],
    dialect: Dialect | None = None,
    stop: trio.CancelScope | None = None,
    *,
    end_turns: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Serve one client over two streams until its input ends or `stop` is cancelled.

    At the end of the input, running requests have `linger` seconds to end; if some still run, `end_turns` is awaited.
    At `stop` they have half a second. Requests that run on are answered with AgentError(cause="shutting_down"). Their
    turns run on in either case, because they belong to the service: a host that is about to end the service passes
    `RuntimeService.stop` as `end_turns`. A client that stops reading does not block the end.
    """
    bounds = EndpointBounds(
        config.max_in_flight,
        max_batch=config.max_in_flight,
        outbox_events=config.outbox_events,
        close_timeout=config.close_timeout,
        linger=config.linger,
        needs_reader=False,
    )
    channel = LineChannel(*streams, config.max_message_bytes)
    endpoint = Endpoint(channel, bounds, stop, end_turns=end_turns)
    limits = Limits() if config.runtime is None else config.runtime.limits
    host = Host(
        service,
        config.public(),
        max_message_bytes=config.max_message_bytes,
        max_attachment=limits.max_attachment,
    )
    await serve_client(endpoint, host, dialect or Native(), config.max_subscriptions)


@asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Yield stdin and stdout of this process as streams, reserved for the protocol.

    For all other code of the process and its children, stdin is empty and stdout is stderr, during the body and after
    it: neither a tool's `print` nor a child process can write into the protocol.

    Trap: the terminal or pipe is non-blocking until the body ends, for other processes that share it too.
    """
    source, sink = os.dup(STDIN), os.dup(STDOUT)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, STDIN)
    os.close(nowhere)
    sys.stdout.flush()
    os.dup2(STDERR, STDOUT)
    sys.stdout = sys.stderr  # which may be one that makes no writer wait
    async with trio.lowlevel.FdStream(source) as incoming, trio.lowlevel.FdStream(sink) as outgoing:
        yield incoming, outgoing
