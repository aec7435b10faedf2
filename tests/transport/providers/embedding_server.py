"""A server of embeddings."""

from collections.abc import Callable
from typing import Any

import attrs
import trio

from tests.transport.providers.byte_server import Request, reset, status


def vector(text: str) -> list[float]:
    """Return a vector that tells a text from others."""
    return [float(len(text)), float(ord(text[0])), 1.0]


def answer(texts: list[str]) -> dict[str, Any]:
    """Return what a server says, its rows in no order."""
    rows = [{"object": "embedding", "index": place, "embedding": vector(text)} for place, text in enumerate(texts)]
    return {"object": "list", "data": rows[::-1], "model": "mini"}


@attrs.define
class Server:
    """A server of embeddings; `faults` are sent in place of the next answers, None breaks the connection."""

    faults: list[bytes | None] = attrs.field(factory=list)
    answer: Callable[[list[str]], object] = answer
    seen: list[Request] = attrs.field(factory=list)

    async def handle(self, request: Request, stream: trio.SocketStream) -> None:
        self.seen.append(request)
        fault = self.faults.pop(0) if self.faults else status(200, self.answer(request.body["input"]))
        if fault is None:
            reset(stream)
        else:
            await stream.send_all(fault)
