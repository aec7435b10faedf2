"""A small real server of chat completions that lists its models and knows one key."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs

from tests.transport.cli.process import Cli

KEY = "sk-the-right-key-0123"
NAMES = ("small-1", "large-1", "gpt-5.4")


@attrs.define
class Behaviour:
    """The behaviour of a server.

    Attributes:
        status: the status of its answers to calls.
        headers: their headers.
        lists: whether it lists its models.
        refuses: texts that no request may have, each with the words of its refusal.
        streams: the events of its answers; None for answers in one piece.
        got: the paths of the requests.
    """

    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    lists: bool = True
    refuses: Mapping[str, str] = attrs.field(factory=dict)
    streams: bytes | None = None
    got: list[str] = attrs.field(factory=list)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: "Server"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in self.server.behaviour.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def refused(self) -> bool:
        self.server.behaviour.got.append(self.path)
        if self.headers["authorization"] == f"Bearer {KEY}":
            return False
        self.answer(401, {"error": {"message": f"bad key {self.headers['authorization']}"}})
        return True

    def do_GET(self) -> None:
        if self.refused():
            return
        if self.server.behaviour.lists and self.path == "/v1/models":
            self.answer(200, {"data": [{"id": name} for name in NAMES]})
        else:
            self.answer(404, {"error": {"message": "nothing here"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.refused():
            return
        if self.server.behaviour.status != 200:
            self.answer(self.server.behaviour.status, {"error": {"message": "no"}})
        elif refused := [words for text, words in self.server.behaviour.refuses.items() if text in json.dumps(body)]:
            self.answer(400, {"detail": refused[0]})
        elif body["model"] not in NAMES:
            self.answer(404, {"error": {"message": f"no model {body['model']}", "code": "model_not_found"}})
        else:
            self.answer(
                200,
                self.server.behaviour.streams
                or {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]},
            )


class Server(ThreadingHTTPServer):
    """Answers as its behaviour says."""

    behaviour: Behaviour


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Serve chat completions and the list of models to those who have the key."""
    server = Server(("127.0.0.1", 0), Handler)
    server.behaviour = behaviour
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def configured(cli: Cli, **urls: str) -> None:
    """Write a configuration file with servers."""
    tables = [f'[providers.{name}]\nbase_url = "{url}"\nkey_env = "THE_KEY"\n' for name, url in urls.items()]
    (cli.folder / "servers.toml").write_text("".join(tables), encoding="utf-8")
