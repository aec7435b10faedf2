"""The opening handshake, without a network."""

import json

import pytest
import wsproto
import wsproto.events
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.clients import HOST
from warren.transport.http.handshake import MAX_HEAD, Gate, Head, HeadReader, RefusedError, plain_request, switch

UPGRADE = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
TAIL = b"\x81\x04tail"


def request(line: str = "GET /ws HTTP/1.1", **headers: str | None) -> bytes:
    """Make an upgrade request; a header given as None is left out, `_` stands for `-`."""
    fields = UPGRADE | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([line, *lines, "", ""]).encode("latin-1")


def read(data: bytes) -> Head:
    """Read a whole head."""
    head = HeadReader().feed(data)
    assert head is not None
    return head


def refusal(data: bytes, gate: Gate | None = None) -> RefusedError:
    """Return why a request is refused."""
    with pytest.raises(RefusedError) as caught:
        (gate or Gate(None, (), HOST)).check(read(data))
    return caught.value


@given(st.lists(st.integers(1, 40)))
def test_a_head_may_come_in_pieces(sizes: list[int]) -> None:
    """However TCP cuts it, the head is the same, and what follows it is kept."""
    data, reader, head = request() + TAIL, HeadReader(), None
    for size in [*sizes, len(data)]:
        piece, data = data[:size], data[size:]
        head = reader.feed(piece)
        if head is not None:
            break
    assert head is not None
    assert (head.method, head.path, head.values("connection")) == ("GET", "/ws", ["keep-alive", "Upgrade"])
    assert head.rest + data == TAIL
    assert head.raw + data == request() + TAIL


def test_what_follows_the_head_is_kept() -> None:
    """A client may send its first frame with the request."""
    assert read(request() + b"\x81\x02hi").rest == b"\x81\x02hi"


def test_the_path_is_without_its_query() -> None:
    """A query does not lead elsewhere."""
    assert Gate(None, (), HOST).check(read(request("GET /ws?x=1 HTTP/1.1"))) is None


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"hello\r\n\r\n"])
def test_what_is_not_http_is_refused(data: bytes) -> None:
    """Somebody who speaks TLS or nothing known gets 400."""
    with pytest.raises(RefusedError) as caught:
        HeadReader().feed(data)
    assert caught.value.status == 400


def test_another_version_of_http_is_refused() -> None:
    """It would go on in frames that mean nothing here."""
    with pytest.raises(RefusedError) as caught:
        HeadReader().feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert caught.value.status == 505


def test_a_wish_for_another_protocol_is_left_out() -> None:
    """What is handed on is the request alone; without such a wish it is what came, byte for byte."""
    wish = {"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings"}
    data = request("POST /sessions?x=1 HTTP/1.1", **wish, HTTP2_Settings="AA", Cookie="c\xe9") + b"body"
    again = read(plain_request(read(data)))
    assert (again.method, again.path, again.rest) == ("POST", "/sessions", b"body")
    assert not again.whole("upgrade")
    assert not again.whole("http2-settings")
    assert (again.whole("connection"), again.whole("cookie")) == (["close"], ["c\xe9"])
    plain = request(Upgrade=None) + b"body"
    assert plain_request(read(plain)) == plain


def test_a_head_without_end_is_refused() -> None:
    """A client cannot make us keep an endless head."""
    with pytest.raises(RefusedError) as caught:
        HeadReader().feed(b"GET /ws HTTP/1.1\r\nX: " + b"x" * MAX_HEAD)
    assert caught.value.status == 431


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
    assert ("WWW-Authenticate", "Bearer") in refusal(request(), Gate("t", (), HOST)).headers


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


def test_what_was_read_can_be_handed_on_whole() -> None:
    """Somebody else can read the request again, from its first byte to the last that has come."""
    assert read(request() + TAIL).raw == request() + TAIL


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
def test_who_has_the_token_gets_in(headers: dict[str, str], subprotocol: str | None) -> None:
    """Both ways of sending the token work; it is the answer where a browser has offered nothing else that we speak."""
    assert Gate("t", (), HOST).check(read(request(**headers))) == subprotocol


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer x"}, {"Sec-WebSocket-Protocol": "warren, bearer.x"}, {"Cookie": "t"}]
)
def test_who_has_not_gets_401(headers: dict[str, str]) -> None:
    """Without the token nobody gets in, whatever else he shows."""
    assert refusal(request(**headers), Gate("t", (), HOST)).status == 401


def test_the_answer_proves_that_the_key_was_read() -> None:
    """A client accepts the answer, with the subprotocol that was agreed on."""
    for agreed in (None, "warren", "bearer.t"):
        client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        offer = client.send(wsproto.events.Request("localhost", "/ws", subprotocols=["warren", "bearer.t"]))
        answer = switch(read(offer), agreed)
        client.receive_data(answer)
        assert [event.subprotocol for event in client.events()] == [agreed]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil@localhost", "localhost:80@evil.example", "[::", "", "local host"]
)
def test_a_foreign_host(host: str) -> None:
    """Without a token a name that is not this machine's leads nowhere, and with one a proxy may give it any."""
    refused = refusal(request(Host=host), Gate(None, (), HOST))
    assert (refused.status, refused.error.body()["details"]["path"]) == (403, "$.headers.host")
    assert Gate("t", (), HOST).check(read(request(Host=host, Authorization="Bearer t"))) is None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8420", "[::1]:8420", "gateway.example:1"])
def test_an_own_host(host: str) -> None:
    """This machine's names and the one that the gateway was given lead to it."""
    assert Gate(None, (), "Gateway.example").check(read(request(Host=host))) is None


def test_a_body_with_two_lengths_is_refused() -> None:
    """Whoever stands before the gateway may go by the other one."""
    with pytest.raises(RefusedError) as caught:
        read(request(**{"Content-Length": "3", "Transfer-Encoding": "chunked"}))
    assert caught.value.status == 400
