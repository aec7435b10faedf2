"""A model behind HTTP for benchmarks, in a process of its own: it answers with bytes that were made before.

The address says what it answers: `/PIECESxSIZE/MILLISECONDS` before the path of the protocol, so that
`/10x25/50/v1/chat/completions` is answered after 50 ms with 10 pieces of 25 characters. It speaks OpenAI's chat
completions and Gemini's `generateContent`, streamed or not as the request asks. `GET /last` returns the body of the
last request to a model. It is plain asyncio without a library for HTTP, so that the clients are what is measured.
"""

import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from warren.transport.cli.process.tuning import allow_files, tune

SENTENCE: Final = "The answer is long enough to be one. "
TOKENS: Final = 100
BACKLOG: Final = 4096
LENGTH: Final = b"content-length:"
ASKED: Final = 4096
"""Bytes at either end of a body that tell whether the answer is to be streamed."""


@attrs.frozen
class ModelServer:
    """A running server.

    Attributes:
        pid: its process.
        port: its port for plain HTTP.
        tls_port: its port for TLS; 0 if it has none.
        authority: the file with the certificate that signed the one of the server; None without TLS.
    """

    pid: int
    port: int
    tls_port: int
    authority: Path | None

    def url(self, pieces: int, size: int, milliseconds: int = 0, *, tls: bool = False) -> str:
        """Return the address of a model."""
        base = f"https://localhost:{self.tls_port}" if tls else f"http://127.0.0.1:{self.port}"
        return f"{base}/{pieces}x{size}/{milliseconds}"


@contextmanager
def started(*, tls: bool = False) -> Iterator[ModelServer]:
    """Run the server in a process of its own for a body."""
    with tempfile.TemporaryDirectory() as name:
        authority, certificate = Path(name) / "authority.pem", Path(name) / "server.pem"
        if tls:
            _sign(authority, certificate)
        line = [sys.executable, "-m", "benchmarks.model_server", *([str(certificate)] if tls else [])]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                port, tls_port = map(int, process.stdout.readline().split())
                yield ModelServer(process.pid, port, tls_port, authority if tls else None)
            finally:
                process.kill()


def _sign(authority: Path, certificate: Path) -> None:
    import trustme  # noqa: PLC0415 - the process of the server has no need of it

    signer = trustme.CA()
    signer.cert_pem.write_to_path(str(authority))
    signer.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))


@cache
def _answer(path: bytes, *, streamed: bool) -> tuple[float, bytes]:
    """Return the seconds to wait and the bytes of the answer."""
    _, shape, milliseconds, *rest = path.decode().split("/")
    count, size = map(int, shape.split("x"))
    piece = (SENTENCE * (size // len(SENTENCE) + 1))[:size]
    make = _gemini if "generateContent" in rest[-1] or "GenerateContent" in rest[-1] else _chat
    return int(milliseconds) / 1000, make([piece] * count, streamed=streamed)


def _chat(pieces: list[str], *, streamed: bool) -> bytes:
    usage = {"prompt_tokens": TOKENS, "completion_tokens": TOKENS, "total_tokens": 2 * TOKENS}
    common = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "gpt-benchmark"}
    if not streamed:
        message = {"role": "assistant", "content": "".join(pieces)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return _whole({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": piece}, None) for piece in pieces]
    deltas += [({}, "stop")]
    choices = [[{"index": 0, "delta": delta, "finish_reason": finish}] for delta, finish in deltas]
    events = [{**common, "object": "chat.completion.chunk", "choices": each} for each in choices]
    return _stream([*events, {**events[0], "choices": [], "usage": usage}], b"data: [DONE]\n\n")


def _gemini(pieces: list[str], *, streamed: bool) -> bytes:
    usage = {"promptTokenCount": TOKENS, "candidatesTokenCount": TOKENS, "totalTokenCount": 2 * TOKENS}

    def part(text: str, finish: dict[str, str]) -> dict[str, Any]:
        content = {"role": "model", "parts": [{"text": text}]}
        return {"candidates": [{"index": 0, "content": content, **finish}], "usageMetadata": usage}

    if not streamed:
        return _whole(part("".join(pieces), {"finishReason": "STOP"}))
    return _stream([*(part(piece, {}) for piece in pieces[:-1]), part(pieces[-1], {"finishReason": "STOP"})], b"")


def _whole(data: dict[str, Any]) -> bytes:
    body = json.dumps(data).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _stream(events: list[dict[str, Any]], last: bytes) -> bytes:
    """Return server-sent events, each in a chunk of its own."""
    parts = [b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n" for event in events]
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, last) if part]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(chunks) + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """A client's connection: requests with a Content-Length, one after another."""

    last: bytes = b""

    def __init__(self) -> None:
        """Wait for the first request."""
        self._parts: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Collect a request, and answer it when it is whole."""
        self._parts.append(data)
        if self._missing > len(data):
            self._missing -= len(data)
            return
        whole = b"".join(self._parts)
        head, end, body = whole.partition(b"\r\n\r\n")
        size = int(head.lower().partition(LENGTH)[2].split(b"\r\n")[0] or 0)
        self._missing = size - len(body) if end else 0
        self._parts = [whole]
        if end and self._missing <= 0:
            self._parts, self._missing = [], 0
            self._reply(head.split(b" ", 2)[1], body)

    def _reply(self, path: bytes, body: bytes) -> None:
        if path == b"/last":
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(Connection.last)
            self._transport.write(head + Connection.last)
            return
        Connection.last = body
        asked = (body[:ASKED] + body[-ASKED:]).replace(b" ", b"")
        delay, answer = _answer(path, streamed=b'"stream":true' in asked or b"streamGenerate" in path)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._transport.write, answer)
        else:
            self._transport.write(answer)


async def _serve(certificate: str | None) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Connection, "127.0.0.1", 0, backlog=BACKLOG)]
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        servers.append(await loop.create_server(Connection, "127.0.0.1", 0, ssl=context, backlog=BACKLOG))
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(*[*ports, 0][:2], flush=True)
    await servers[0].serve_forever()


def main(certificate: str | None = None) -> None:
    """Serve until the process is ended; the first line of the output has the ports for plain HTTP and for TLS."""
    allow_files()
    tune()
    asyncio.run(_serve(certificate))


if __name__ == "__main__":
    main(*sys.argv[1:])
