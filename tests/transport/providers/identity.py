"""A managed identity as Azure's App Service has it, by its documentation: a small real server of tokens."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final
from urllib.parse import parse_qs, urlsplit

import attrs

from warren.conversation import codec

SECRET: Final = "identity-not-a-secret"  # noqa: S105 - of this server alone


@attrs.define
class Identity:
    """The server's answers, and the variables by which Azure's library finds it and nothing else.

    Attributes:
        environ: the variables.
        answers: a token and the seconds for which it holds, by request; None refuses. The last one goes on.
        close: ends the server, whose port then refuses.
        given: how many requests there were.
    """

    environ: dict[str, str]
    answers: Sequence[tuple[str, int] | None]
    close: Callable[[], None]
    given: int = 0


@contextmanager
def serving_identity(*answers: tuple[str, int] | None) -> Iterator[Identity]:
    """Give the tokens, one by one, to those who have the secret."""

    class Tokens(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["x-identity-header"] == SECRET
            asked = parse_qs(urlsplit(self.path).query)
            assert asked["resource"] == ["https://cognitiveservices.azure.com"]
            answer = identity.answers[min(identity.given, len(identity.answers) - 1)]
            identity.given += 1
            if answer is None:
                body = codec.encode({"statusCode": 400, "message": f"AADSTS700016: no such application, {SECRET}"})
            else:
                token, seconds = answer
                end = str(int(time.time()) + seconds)
                body = codec.encode({"access_token": token, "expires_on": end, "token_type": "Bearer"})
            self.send_response(400 if answer is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    environ = {
        "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",  # the others would ask the machine of the tests
        "IDENTITY_ENDPOINT": f"http://127.0.0.1:{server.server_port}/msi/token",
        "IDENTITY_HEADER": SECRET,
    }
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def close() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    identity = Identity(environ, answers, close)
    try:
        yield identity
    finally:
        close()
