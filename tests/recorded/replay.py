"""A server that replays recordings, each below a path of its own, cut anywhere."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import trio

from tests.recorded.corpus import Recording
from tests.transport.providers.byte_server import END, Request, chunk

MOST_PARTS: Final = 64
PACE: Final = 0.0005
"""Seconds between the parts of an answer that comes slowly."""


@attrs.define
class Replay:
    """Answers each request with the recording whose number the path begins with.

    Attributes:
        recordings: the recordings.
        seed: decides where the bodies are cut; None sends each of them in one part.
        slow: whether the parts come one by one.
        asked: the bodies of the requests, by the numbers of the recordings.
    """

    recordings: Sequence[Recording]
    seed: int | None = None
    slow: bool = False
    asked: dict[int, list[Any]] = attrs.field(factory=dict)

    async def __call__(self, request: Request, stream: trio.SocketStream) -> None:
        """Answer a request."""
        number = int(request.path.split("/")[1])
        self.asked.setdefault(number, []).append(request.body)
        recording = self.recordings[number]
        kind = f"content-type: {recording.kind}\r\n" if recording.kind else ""
        own = "".join(f"{name}: {value}\r\n" for name, value in recording.headers.items())
        head = f"HTTP/1.1 {recording.status} Recorded\r\n{kind}{own}transfer-encoding: chunked\r\n\r\n"
        await stream.send_all(head.encode())
        for part in cut(recording.body.encode(), None if self.seed is None else f"{self.seed} {recording.name}"):
            await stream.send_all(chunk(part))
            await trio.sleep(PACE if self.slow else 0)
        await stream.send_all(END)


def cut(body: bytes, seed: str | None) -> Iterator[bytes]:
    """Yield a body in parts; also characters and the ends of lines are cut."""
    chosen = random.Random(seed)  # noqa: S311 - no secret
    count = 0 if seed is None else chosen.randrange(MOST_PARTS)
    places = sorted({chosen.randrange(1, len(body)) for _ in range(count)} if len(body) > 1 else ())
    for begin, end in zip([0, *places], [*places, len(body)], strict=True):
        if begin < end:
            yield body[begin:end]
