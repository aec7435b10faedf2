"""The gateway from end to end: real sockets, the real runtime, a model in the test's hand."""

import json
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.fake_service import FakeService
from tests.support.models import Flood, Puppet
from tests.transport.clients import Client, connect, gateway, seqs, text
from tests.transport.gateway.serving import runtime, served
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.gateway import serve_gateway
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.methods import METHODS


async def create(client: Client, model: str = "echo") -> str:
    """Create a session without a turn."""
    session_id = (await client.call("session/create", prompt=None, model=model))["session_id"]
    assert isinstance(session_id, str)
    return session_id


async def test_a_client_says_hello() -> None:
    """The handshake of the protocol names the methods that there are; the notification after it gets no reply."""
    async with served() as (_, port), connect(port) as client:
        hello = await client.call("initialize", client_info={"name": "test"})
        assert hello["methods"] == list(METHODS)
        assert hello["server_info"]["name"] == "warren"
        await client.raw('{"jsonrpc":"2.0","method":"initialized"}')
        assert (await client.call("health"))["status"] != "failed"
        assert len(client.seen) == 2


async def test_events_come_in_order_and_before_the_reply() -> None:
    """A client sees its turn from the first event to the last, then the result."""
    async with served() as (_, port), connect(port) as client:
        result = await client.call("session/create", prompt="one two three")
        assert result["text"] == "one two three"
        events = client.events(result["session_id"])
        assert events[0]["event"]["type"] == "run_started"
        assert events[-1]["event"]["type"] == "run_completed"
        assert text(events) == "one two three"
        assert seqs(events) == list(range(1, events[-1]["seq"] + 1))
        assert "result" in client.seen[-1]


async def test_a_session_goes_through_its_life(tmp_path: Path) -> None:
    """Every method does over the wire what the service does."""
    async with served(tmp_path) as (_, port), connect(port) as client:
        first = await client.call("session/create", prompt="hello", labels={"kind": "test"})
        session_id = first["session_id"]
        assert (await client.call("turn/start", session_id=session_id, prompt="again"))["text"] == "again"
        view = await client.call("session/read", session_id=session_id)
        assert (view["state"]["message_count"], view["state"]["lifecycle"]) == (4, "live")
        assert (await client.call("session/resume", session_id=session_id))["state"]["session_id"] == session_id
        history = await client.call("session/history", session_id=session_id, offset=1, limit=2)
        assert [entry["message"]["role"] for entry in history["messages"]] == ["assistant", "user"]
        rows = (await client.call("session/list", labels={"kind": "test"}))["sessions"]
        assert [row["session_id"] for row in rows] == [session_id]
        assert await client.call("session/archive", session_id=session_id) == {"archived": True}
        assert (await client.call("session/list"))["sessions"] == []
        assert (await client.error("turn/start", session_id=session_id, prompt="x"))["code"] == -32001
        assert await client.call("session/delete", session_id=session_id) == {"deleted": True}
        assert (await client.error("session/read", session_id=session_id))["data"]["code"] == "SESSION_NOT_FOUND"
        assert (await client.call("capabilities/get"))["session_store"] is True


async def test_an_interrupt_passes_a_running_turn() -> None:
    """On one connection a turn runs, reads are answered, a second turn is refused, and an interrupt ends the first."""
    puppet = Puppet()
    async with served(puppet=puppet) as (_, port), connect(port) as client:
        session_id = await create(client, "puppet")
        turn = await client.send("turn/start", session_id=session_id, prompt="go")
        puppet.say("so far")
        await client.until("text_delta")
        assert (await client.call("session/read", session_id=session_id))["state"]["is_active"] is True
        assert (await client.error("turn/start", session_id=session_id, prompt="me too"))["code"] == -32002
        assert await client.call("turn/interrupt", session_id=session_id) == {"interrupted": True}
        error = (await client.reply(turn))["error"]
        assert (error["code"], error["data"]["details"]["cause"]) == (-32000, "cancelled")
        assert client.events(session_id)[-1]["event"]["type"] == "run_failed"
        assert (await client.error("turn/interrupt", session_id=session_id))["code"] == -32005
        puppet.say("fine", None)
        assert (await client.call("turn/start", session_id=session_id, prompt="go on"))["text"] == "fine"


async def test_two_watchers_see_the_same() -> None:
    """A client that follows a session sees the turns that others start, each event once."""
    async with served() as (_, port), connect(port) as one, connect(port) as two, connect(port) as owner:
        session_id = await create(owner)
        for client in (one, two):
            assert await client.call("session/subscribe", session_id=session_id) == {
                "subscribed": True,
                "after_seq": 0,
            }
        await owner.call("turn/start", session_id=session_id, prompt="for all to see")
        for client in (one, two):
            await client.until("run_completed")
            assert text(client.events(session_id)) == "for all to see"
            assert seqs(client.events(session_id)) == seqs(owner.events(session_id))


async def test_a_subscriber_sees_its_own_turn_once() -> None:
    """Subscribed or not, the events come once, and the reply after the last of them."""
    async with served() as (_, port), connect(port) as client:
        session_id = await create(client)
        await client.call("session/subscribe", session_id=session_id)
        for number in range(5):
            await client.call("turn/start", session_id=session_id, prompt=f"number {number} of them")
            assert "result" in client.seen[-1]
        events = client.events(session_id)
        assert seqs(events) == list(range(1, events[-1]["seq"] + 1))
        assert await client.call("session/unsubscribe", session_id=session_id) == {"unsubscribed": True}
        await client.call("turn/start", session_id=session_id, prompt="still heard")
        assert client.events(session_id)[-1]["event"]["type"] == "run_completed"
        assert seqs(client.events(session_id)) == list(range(1, client.events(session_id)[-1]["seq"] + 1))


@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_burst_reaches_its_caller_whole(subscribed: bool) -> None:  # noqa: FBT001
    """A model that says thousands of pieces without a pause loses none of them on the way."""
    puppet = Puppet()
    puppet.say(*["x"] * 5000, None)
    async with served(puppet=puppet) as (_, port), connect(port) as client:
        session_id = await create(client, "puppet")
        if subscribed:
            await client.call("session/subscribe", session_id=session_id)
        await client.call("turn/start", session_id=session_id, prompt="go")
        assert seqs(client.events(session_id)) == list(range(1, client.events(session_id)[-1]["seq"] + 1))
        assert text(client.events(session_id)) == "x" * 5000


@pytest.mark.parametrize("stored", [False, True])
async def test_a_reconnecting_client_gets_exactly_what_it_missed(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """A client that was cut off in mid-turn gets the rest by `after_seq`, while the turn goes on."""
    puppet = Puppet()
    async with served(tmp_path if stored else None, puppet=puppet) as (_, port):
        async with connect(port) as client:
            session_id = await create(client, "puppet")
            await client.send("turn/start", session_id=session_id, prompt="go")
            puppet.say("one ")
            seen = (await client.until("text_delta"))["seq"]
            before = client.events(session_id)
        puppet.say("two ")
        async with connect(port) as client:
            await client.call("session/subscribe", session_id=session_id, after_seq=seen)
            puppet.say("three", None)
            await client.until("run_completed")
            after = client.events(session_id)
            assert seqs(before + after) == list(range(1, after[-1]["seq"] + 1))
            assert text(before + after) == "one two three"
        async with connect(port) as client:
            await client.call("session/subscribe", session_id=session_id, after_seq=0)
            await client.until("run_completed")
            assert seqs(client.events(session_id)) == seqs(before + after)


async def test_the_reply_to_a_subscription_comes_before_its_events() -> None:
    """Replayed events follow the reply."""
    async with served() as (_, port), connect(port) as client:
        session_id = (await client.call("session/create", prompt="hello"))["session_id"]
        client.seen.clear()
        await client.send("session/subscribe", session_id=session_id, after_seq=0)
        await client.until("run_completed")
        assert client.seen[0]["result"] == {"subscribed": True, "after_seq": 0}


async def test_a_turn_outlives_its_client(tmp_path: Path) -> None:
    """A client that goes away in mid-turn cancels nothing: the turn ends and is stored."""
    puppet = Puppet()
    async with served(tmp_path, puppet=puppet) as (service, port):
        async with connect(port) as client:
            session_id = await create(client, "puppet")
            await client.send("turn/start", session_id=session_id, prompt="go")
            puppet.say("half ")
            await client.until("text_delta")
            await client.socket.aclose()
        puppet.say("and half", None)
        async with service.subscribe(session_id, after_seq=0) as envelopes:
            async for envelope in envelopes:
                if type(envelope.event).__name__ == "RunCompleted":
                    break
    async with runtime(tmp_path, puppet=puppet) as service:
        assert (await service.read(session_id)).state.last_assistant_text == "half and half"


async def test_one_connection_carries_many_sessions() -> None:
    """A hundred turns of as many sessions run at once on one connection, and each reply is its own."""
    async with served() as (_, port), connect(port) as client:
        ids = [await client.send("session/create", prompt=f"this is number {number}") for number in range(100)]
        for number, request_id in enumerate(ids):
            result = (await client.reply(request_id))["result"]
            assert result["text"] == f"this is number {number}"
            assert text(client.events(result["session_id"])) == f"this is number {number}"


async def test_a_flood_is_merged_not_lost() -> None:
    """A client that reads gets all of a long answer, in fewer frames than there were pieces."""
    async with served(flood=Flood(2000, "x" * 50, burst=10)) as (_, port), connect(port) as client:
        session_id = await create(client, "flood")
        await client.call("turn/start", session_id=session_id, prompt="go")
        events = client.events(session_id)
        assert text(events) == "x" * 100_000
        assert seqs(events) == list(range(1, events[-1]["seq"] + 1))
        assert len(events) < 500


BAD: list[tuple[str, int, str]] = [
    ("", -32700, "$"),
    ("{", -32700, "$"),
    ("nonsense", -32700, "$"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "health"', -32700, "$"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "health"} trailing', -32700, "$"),
    ("{'jsonrpc': '2.0'}", -32700, "$"),
    ('{"jsonrpc": "2.0", "id": NaN, "method": "health"}', -32700, "$"),
    ('"\\ud800"', -32700, "$"),
    ("[" * 100_000, -32700, "$"),
    ("[]", -32600, "$"),
    ("3", -32600, "$"),
    ('"health"', -32600, "$"),
    ("null", -32600, "$"),
    ("true", -32600, "$"),
    ("{}", -32600, "$.jsonrpc"),
    ('{"id": 1, "method": "health"}', -32600, "$.jsonrpc"),
    ('{"jsonrpc": "1.0", "id": 1, "method": "health"}', -32600, "$.jsonrpc"),
    ('{"jsonrpc": "2.0", "id": null, "method": "health"}', -32600, "$.id"),
    ('{"jsonrpc": "2.0", "id": [1], "method": "health"}', -32600, "$.id"),
    ('{"jsonrpc": "2.0", "id": true, "method": "health"}', -32600, "$.id"),
    ('{"jsonrpc": "2.0", "id": 1}', -32600, "$.method"),
    ('{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600, "$.method"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "health", "x": 1}', -32600, "$.x"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "no/such"}', -32601, "$.method"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "health", "params": []}', -32602, "$"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "health", "params": null}', -32602, "$"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "health", "params": {"x": 1}}', -32602, "$.x"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "turn/start", "params": {"prompt": "x"}}', -32602, "$.session_id"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "session/read", "params": {"session_id": 1}}', -32602, "$.session_id"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "session/create", "params": {"prompt": ""}}', -32602, "$.prompt"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "session/create", "params": {"prompt": ["x"]}}', -32602, "$.prompt"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {"limit": 1e3}}', -32602, "$.limit"),
    ('{"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {"offset": 1e99}}', -32602, "$.offset"),
    (
        '{"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {"offset": 9223372036854775808}}',
        -32602,
        "$.offset",
    ),
]


async def test_bad_input_is_answered_and_the_connection_lives() -> None:
    """Each of these gets its error, in order, naming the bad field; then a good request is served."""
    async with served() as (_, port), connect(port) as client:
        for frame, code, path in BAD:
            await client.raw(frame)
            error = (await client.next())["error"]
            assert (error["code"], error["data"]["details"]["path"]) == (code, path), frame
            assert error["message"].startswith(path)
            assert error["data"]["code"] == jsonrpc.NAMES.get(code, "INVALID_PARAMS")
        await client.raw(b'{"jsonrpc": "2.0", "id": 1, "method": "health"}')
        assert (await client.next())["error"]["code"] == -32600
        await client.raw(b"\x00\xff")
        assert (await client.next())["error"]["code"] == -32600
        client.seen.clear()
        assert (await client.call("health"))["status"] != "failed"


async def test_errors_carry_the_id_they_belong_to() -> None:
    """If the id can be read the error has it, else null."""
    async with served() as (_, port), connect(port) as client:
        for request_id in ("a", 7, 1.5, 10**25):
            await client.raw(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "no/such"}))
            assert (await client.next())["id"] == request_id
        await client.raw("{")
        assert (await client.next())["id"] is None


async def test_bad_notifications_are_not_answered() -> None:
    """Whatever comes of a notification, nobody hears of it; a good one is served."""
    async with served() as (_, port), connect(port) as client:
        await client.raw('{"jsonrpc": "2.0", "method": "no/such"}')
        await client.raw('{"jsonrpc": "2.0", "method": "health", "params": {"x": 1}}')
        await client.raw('{"jsonrpc": "2.0", "method": "session/read", "params": {"session_id": "x"}}')
        await client.raw('{"jsonrpc": "2.0", "method": "session/create", "params": {"prompt": "heard"}}')
        await client.until("run_completed")
        assert (await client.call("health"))["live_sessions"] == 1
        assert [message for message in client.seen if "error" in message] == []


@pytest.mark.time_limit(20)
async def test_a_start_that_is_cut_short_ends() -> None:
    """Told to end at any moment of its start, the gateway ends."""
    async with runtime() as service:
        for steps in range(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_gateway, service, GatewayConfig(port=0, close_timeout=0.1))
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()


async def test_a_unix_socket_of_the_settings(tmp_path: Path) -> None:
    """It is bound without a token, clients have no address there, and it is removed at the end."""
    path = tmp_path / "w.sock"
    async with gateway(FakeService(), host=f"unix:{path}") as port:
        assert port == 0
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as http:
            assert (await http.post("http://localhost/sessions", json={"prompt": "hi"})).json()["text"] == "hi"
    assert not path.exists()
