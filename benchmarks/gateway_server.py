"""The servers that the benchmark of the gateway speaks to, each in a process of its own; the first line is the port.

`singly` and `merged` are gateways whose model streams its pieces one at a time or all at once. `bare FILE` is a plain
trio-websocket server that answers every message with the messages in a file, a line each; `paced FILE` waits after each
message as the model of `singly` does after each piece.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from warren import Config, open_supervisor
from warren.messages import AssistantMessage, TextBlock
from warren.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.transport.cli.process import allow_files, tune
from warren.transport.gateway.server import serve_gateway
from warren.transport.http.config import GatewayConfig
from warren.usage import Usage

PIECES: Final = ("a few words ",) * 100


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


async def _gateway(*, singly: bool) -> None:
    config = Config(model="fixed", provider="fixed")
    async with (
        open_supervisor(config, providers={"fixed": StreamingModel(singly)}) as service,
        trio.open_nursery() as nursery,
    ):
        print(await nursery.start(serve_gateway, service, GatewayConfig(port=0)), flush=True)


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


def main(kind: str, *path: str) -> None:
    """Serve until the process is ended."""
    allow_files()
    tune()
    if path:
        messages = Path(path[0]).read_text(encoding="utf-8").splitlines()
        trio.run(lambda: _bare(messages, paced=kind == "paced"))
    else:
        trio.run(lambda: _gateway(singly=kind == "singly"))


if __name__ == "__main__":
    main(*sys.argv[1:])
