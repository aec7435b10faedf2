"""The servers that the benchmark of the gateway speaks to, each in a process of its own; the first line is the port.

`singly` and `merged` are gateways whose model streams its pieces one at a time or all at once. `bare FILE` is a plain
trio-websocket server that answers every message with the messages in a file, a line each; `paced FILE` waits after each
message as the model of `singly` does after each piece.

`durable FOLDER` is a gateway with a store in a folder, whose model answers at once. `tenants FOLDER` is one with a
memory and a list of tokens besides, in which the tenant `flood` has limits. `h11 FILE` is plain h11 on trio: it answers
every request with the body in a file, and does nothing else.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import h11
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from benchmarks.models import FixedModel
from warren import Config, StoreConfig, open_supervisor
from warren.base.tenant_limits import TenantLimits
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import AssistantMessage, TextBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, Provider, TextPiece
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.process.tuning import allow_files, tune
from warren.transport.gateway.gateway import serve_gateway

PIECES: Final = ("a few words ",) * 100
CHUNK: Final = 64 * 1024
FLOOD_LIMITS: Final = TenantLimits(
    sessions=200, running_turns=10, turns_per_minute=600, requests_per_second=100, stored_bytes=50_000_000
)


@contextmanager
def started(*command: str) -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own for a body; yields its process id and its port."""
    line = [sys.executable, "-m", "benchmarks.gateway_server", *command]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def processor_time(pid: int) -> float:
    """Return the seconds of processors that all threads of a process have used (Linux)."""
    return time.clock_gettime(~pid << 3 | 2)  # how Linux numbers the processor clock of another process


@attrs.frozen
class StreamingModel:
    """Streams the pieces; `singly` waits after each until it has left, as the pace of a network would have it."""

    singly: bool

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the answer."""
        del request
        await trio.lowlevel.checkpoint()
        for piece in PIECES:
            emit(TextPiece(piece))
            if self.singly:
                await trio.testing.wait_all_tasks_blocked()
        return ModelReply(AssistantMessage((TextBlock("".join(PIECES)),)), Usage(1, 1))


async def _gateway(model: Provider, folder: str | None = None) -> None:
    store = None if folder is None else StoreConfig(Path(folder))
    config = Config(model="fixed", provider="fixed", store=store)
    async with open_supervisor(config, providers={"fixed": model}) as service, trio.open_nursery() as nursery:
        print(await nursery.start(serve_gateway, service, GatewayConfig(port=0)), flush=True)


async def _tenants(folder: Path) -> None:
    """Serve two tenants, of which the one that floods has limits."""
    config = Config(
        model="fixed",
        provider="fixed",
        store=StoreConfig(folder / "store"),
        memory=MemoryConfig(folder / "memory"),
        tenants={"flood": FLOOD_LIMITS},
    )
    settings = GatewayConfig(port=0, token_file=folder / "tokens.toml", runtime=config)
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as service, trio.open_nursery() as nursery:
        print(await nursery.start(serve_gateway, service, settings), flush=True)


async def _bare(messages: list[str], *, paced: bool) -> None:
    async def serve(request: WebSocketRequest) -> None:
        socket = await request.accept()
        try:
            while True:
                await socket.get_message()
                for message in messages:
                    await socket.send_message(message)
                    if paced:
                        await trio.testing.wait_all_tasks_blocked()
        except ConnectionClosed:
            return

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, serve, "127.0.0.1", 0, None)
        print(server.port, flush=True)


async def _h11(body: bytes) -> None:
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]

    async def serve(stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            match connection.next_event():
                case h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(CHUNK))
                case h11.EndOfMessage():
                    answer = connection.send(h11.Response(status_code=200, headers=headers))
                    parts = (answer, connection.send(h11.Data(data=body)), connection.send(h11.EndOfMessage()))
                    await stream.send_all(b"".join(part for part in parts if part))
                    connection.start_next_cycle()
                case h11.ConnectionClosed():
                    return

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        print(listeners[0].socket.getsockname()[1], flush=True)


def main(kind: str, path: str = "") -> None:
    """Serve until the process is ended."""
    allow_files()
    tune()
    match kind:
        case "singly" | "merged":
            trio.run(_gateway, StreamingModel(kind == "singly"))
        case "durable":
            trio.run(_gateway, FixedModel(), path)
        case "tenants":
            trio.run(_tenants, Path(path))
        case "h11":
            trio.run(_h11, Path(path).read_bytes())
        case _:
            messages = Path(path).read_text(encoding="utf-8").splitlines()
            trio.run(lambda: _bare(messages, paced=kind == "paced"))


if __name__ == "__main__":
    main(*sys.argv[1:])
