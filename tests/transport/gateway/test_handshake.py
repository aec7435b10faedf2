"""The opening handshake: its checks without a network, its answer from a gateway."""

import json

import h11
import pytest
import trio
from wsproto.connection import Connection as FrameConnection
from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, Request, TextMessage

from tests.support.fake_service import FakeService
from tests.support.waiting import AT_ONCE
from tests.transport.clients import HEALTH, HOST, Frames, gateway
from warren.transport.access.auth import AccessPolicy
from warren.transport.access.head import Head, head_of
from warren.transport.access.logins import Authenticator, single
from warren.transport.access.refusals import RefusedError
from warren.transport.gateway.handshake import check

UPGRADE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
TOKEN = "t"  # noqa: S105 - not one of ours
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
        check(read(data), policy)
    return caught.value


def agreed(data: bytes, policy: AccessPolicy = OPEN) -> str | None:
    """Return the subprotocol that a request is answered with."""
    return check(read(data), policy).subprotocol


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
        (request(Sec_WebSocket_Protocol="bearer.\xe9"), 400),
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


@pytest.mark.parametrize(
    ("offered", "expected"), [([], None), (["warren", "bearer.t"], "warren"), (["bearer.t"], "bearer.t")]
)
async def test_the_answer_proves_that_the_key_was_read(offered: list[str], expected: str | None) -> None:
    """A client accepts the answer, with the subprotocol that was agreed on and no extension, whatever it offers."""
    async with gateway(FakeService()) as port, await trio.open_tcp_stream(HOST, port) as stream:
        client = Frames(stream)
        extensions = {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits", "X-Long": "x" * 10_000}
        answer = await client.open(*offered, **extensions)
        assert isinstance(answer, AcceptConnection)
        assert (answer.subprotocol, answer.extensions) == (expected, [])


async def test_a_message_that_comes_with_the_request_is_answered() -> None:
    """A client that does not wait for the answer to its request loses none of what it sends, cut anywhere."""
    message = FrameConnection(ConnectionType.CLIENT).send(TextMessage(HEALTH))
    for cut in (1, 2, 7, len(message), 2 * len(message)):
        async with gateway(FakeService()) as port, await trio.open_tcp_stream(HOST, port) as stream:
            client, sent = Frames(stream), message * 2
            offer = client.protocol.send(Request(HOST, "/ws"))
            await stream.send_all(offer + sent[:cut])
            with trio.fail_after(AT_ONCE):
                assert isinstance(await client.next(), AcceptConnection)
                await stream.send_all(sent[cut:])
                for _ in range(2):
                    served = await client.next()
                    assert isinstance(served, TextMessage)
                    assert "result" in served.data


@pytest.mark.parametrize(
    "changed",
    [
        {"Upgrade": "h2c, websocket"},
        {"Upgrade": "WebSocket"},
        {"Connection": "keep-alive\r\nConnection: upgrade"},
        {"Host": "x" * 300 + ".example", "Authorization": "Bearer t"},
        {"line": "GET http://localhost/ws HTTP/1.1"},
        {"Sec_WebSocket_Protocol": "\xe9, warren"},
    ],
)
async def test_an_unusual_request_is_answered(changed: dict[str, str]) -> None:
    """Everything that HTTP lets a client write about an upgrade opens a WebSocket."""
    async with gateway(FakeService(), token=TOKEN) as port, await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(request(**{"Authorization": "Bearer t", **changed}))
        with trio.fail_after(AT_ONCE):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")


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
