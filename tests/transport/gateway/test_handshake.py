"""The opening handshake, without a network."""

import json

import h11
import pytest
import wsproto
import wsproto.events

from tests.transport.clients import HOST
from warren.transport.gateway.handshake import accept
from warren.transport.http.auth import AccessPolicy
from warren.transport.http.head import Head, head_of
from warren.transport.http.logins import Authenticator, single
from warren.transport.http.refusals import RefusedError

UPGRADE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
OPEN = AccessPolicy(Authenticator(), (), HOST)
GUARDED = AccessPolicy(Authenticator(single("t")), (), HOST)


def request(line: str = "GET /ws HTTP/1.1", **headers: str | None) -> bytes:
    """Make an upgrade request; a header given as None is left out, `_` stands for `-`."""
    fields = UPGRADE | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1")


def read(data: bytes) -> Head:
    """Read a whole head."""
    protocol = h11.Connection(h11.SERVER)
    protocol.receive_data(data)
    event = protocol.next_event()
    assert isinstance(event, h11.Request)
    return head_of(event)


def refusal(data: bytes, policy: AccessPolicy = OPEN) -> RefusedError:
    """Return why a request is refused."""
    with pytest.raises(RefusedError) as caught:
        accept(read(data), policy)
    return caught.value


def agreed(data: bytes, policy: AccessPolicy = OPEN) -> str | None:
    """Return the subprotocol that a request is answered with."""
    lines = accept(read(data), policy).decode().split("\r\n")
    found = [line.partition(": ")[2] for line in lines if line.startswith("Sec-WebSocket-Protocol: ")]
    return found[0] if found else None


def test_the_query_of_the_path_is_passed_over() -> None:
    """A query does not lead elsewhere."""
    assert agreed(request("GET /ws?x=1 HTTP/1.1")) is None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("POST /ws HTTP/1.1"), 426),
        (request(Upgrade=None), 426),
        (request(Upgrade="h2c"), 426),
        (request(Connection=None), 426),
        (request(Connection="close"), 426),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Version=None), 426),
        (request(Sec_WebSocket_Key=None), 400),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400),
        (request(Sec_WebSocket_Key="not base64 at all!"), 400),
        (request(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ\xe9="), 400),
        (request(Origin="http://evil.example"), 403),
        (request(Origin="null"), 403),
    ],
)
def test_what_is_no_upgrade_gets_an_answer(data: bytes, status: int) -> None:
    """Each thing that is wrong has its status."""
    refused = refusal(data)
    assert refused.status == status
    assert refused.answer().startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(refused.answer().partition(b"\r\n\r\n")[2])["message"] == str(refused)


def test_a_refusal_says_what_would_be_right() -> None:
    """Headers tell programs what the text tells people."""
    assert ("Upgrade", "websocket") in refusal(request(Upgrade=None)).headers
    assert ("Sec-WebSocket-Version", "13") in refusal(request(Sec_WebSocket_Version="8")).headers


def test_an_answer_is_whole() -> None:
    """The answer has its length, its end, and closes; its body is an error as every surface shows it."""
    head, _, body = RefusedError(404, "nothing here", ("X", "y"), field="$.path").answer().partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 404 Not Found",
        b"Content-Type: application/json",
        f"Content-Length: {len(body)}".encode(),
        b"X: y",
        b"Connection: close",
    ]
    shown = {"code": "INVALID_PARAMS", "message": "nothing here", "retryable": False, "details": {"path": "$.path"}}
    assert json.loads(body) == shown


def test_a_server_that_is_full_says_so() -> None:
    """With 503 it is not the client who is at fault, and it may ask again."""
    error = RefusedError(503, "full").error
    assert (error.code, error.retryable) == ("CAPACITY_EXCEEDED", True)


@pytest.mark.parametrize(
    ("headers", "subprotocol"),
    [
        ({"Authorization": "Bearer t"}, None),
        ({"Authorization": "Bearer t", "Sec-WebSocket-Protocol": "other"}, None),
        ({"Authorization": "Bearer t", "Sec-WebSocket-Protocol": "warren"}, "warren"),
        ({"Sec-WebSocket-Protocol": "warren, bearer.t"}, "warren"),
        ({"Sec-WebSocket-Protocol": "bearer.t,warren"}, "warren"),
        ({"Sec-WebSocket-Protocol": "bearer.t"}, "bearer.t"),
        ({"Sec-WebSocket-Protocol": "other, bearer.t"}, "bearer.t"),
    ],
)
def test_the_subprotocol_of_the_answer(headers: dict[str, str], subprotocol: str | None) -> None:
    """The token's is the answer where a browser has offered nothing else that we speak."""
    assert agreed(request(**headers), GUARDED) == subprotocol


def test_the_answer_proves_that_the_key_was_read() -> None:
    """A client accepts the answer, with the subprotocol that was agreed on."""
    for offered, expected in (([], None), (["warren", "bearer.t"], "warren"), (["bearer.t"], "bearer.t")):
        client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        offer = client.send(wsproto.events.Request("localhost", "/ws", subprotocols=offered))
        client.receive_data(accept(read(offer), OPEN))
        assert [event.subprotocol for event in client.events()] == [expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil@localhost", "localhost:80@evil.example", "[::", "", "local host"]
)
def test_a_foreign_host(host: str) -> None:
    """Without a token a name that is not this machine's leads nowhere, and with one a proxy may give it any."""
    refused = refusal(request(Host=host))
    assert (refused.status, refused.error.body()["details"]["path"]) == (403, "$.headers.host")
    assert agreed(request(Host=host, Authorization="Bearer t"), GUARDED) is None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8420", "[::1]:8420", "gateway.example:1"])
def test_an_own_host(host: str) -> None:
    """This machine's names and the one that the gateway was given lead to it."""
    assert agreed(request(Host=host), AccessPolicy(Authenticator(), (), "Gateway.example")) is None
