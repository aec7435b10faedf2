"""The endpoint that every stream of JSON-RPC is served by: asking, answering, bounds, order and the end."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transport.rpc.endpoints import opened
from warren.actors.io.streams import EDGE
from warren.base.errors import InvalidParamsError, WarrenError
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.endpoint import GRACE, Dispatcher, Endpoint, EndpointBounds, GoneError, Unreadable, Work
from warren.transport.rpc.unread import UnreadReplies


@attrs.define(eq=False)
class Echo(Dispatcher):
    """Answers with its parameters.

    Attributes:
        seen: methods in the order in which they were begun, and the hooks that were called.
        go: what the method `wait` waits for.
    """

    seen: list[str] = attrs.field(factory=list)
    go: trio.Event = attrs.field(factory=trio.Event)

    def begin(self, method: str, params: Any, request_id: jsonrpc.Id) -> Work | bytes | None:
        self.seen.append(method)
        match method:
            case "echo" | "large":
                return Work(lambda: self._echo(params), bulky=method == "large")
            case "wait":
                return Work(self._wait)
            case "nothing":
                return None
            case "quiet":
                return Work(self._quiet)
            case "now":
                return jsonrpc.result(request_id, "now")
            case "bad":
                raise InvalidParamsError("$.x: is bad", path="$.x")
        return Work(self._fail)

    def hang_up(self) -> None:
        self.seen.append("[hung up]")

    def abandon(self) -> None:
        self.seen.append("[abandoned]")

    async def _echo(self, params: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return params

    async def _wait(self) -> Any:
        await self.go.wait()
        return "waited"

    async def _quiet(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _fail(self) -> Any:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("secret")


def errors(sent: list[Any]) -> list[tuple[object, int]]:
    """Return the ids and numbers of the errors among messages."""
    return [(each["id"], each["error"]["code"]) for each in sent if "error" in each]


async def test_it_answers() -> None:
    """Each request gets one reply under its id: a result, a ready reply, or an error; some get none."""
    async with opened(Echo()) as (_, line):
        line.call(1, "echo", x=1)
        line.call("two", "now")
        line.call(3, "bad")
        line.call(4, "nothing")
        line.call(5, "quiet")
        await wait_all_tasks_blocked()
        assert {each["id"]: each.get("result") for each in line.sent} == {1: {"x": 1}, "two": "now", 3: None}
        assert errors(line.sent) == [(3, -32602)]


async def test_a_failure_of_ours_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and answered without its text."""
    async with opened(Echo()) as (_, line):
        line.call(1, "fail")
        await wait_all_tasks_blocked()
        assert errors(line.sent) == [(1, -32603)]
        assert "secret" not in str(line.sent)
    assert "secret" in caplog.text


async def test_a_notification_gets_no_reply() -> None:
    """Neither a result nor an error, whatever comes of it."""
    async with opened(Echo()) as (_, line):
        for method in ("echo", "bad", "now", "nothing", "quiet"):
            line.say({"jsonrpc": "2.0", "method": method})
        await wait_all_tasks_blocked()
        assert line.sent == []


async def test_replies_held_back_in_batches_count_as_unread() -> None:
    """A client that collects large ones behind slow ones is let go; what is read or never sent does not count."""
    unread = UnreadReplies(10_000)
    async with opened(Echo()) as (endpoint, line):
        endpoint.count_in(unread)
        for _ in range(100):
            line.say({"jsonrpc": "2.0", "method": "bad", "params": {}})
            line.say([call("echo", "x" * 8_000)])
            await wait_all_tasks_blocked()
        assert (len(line.sent), unread.size) == (100, 0)
        line.say([call("wait"), call("echo", "x" * 8_000)])
        await wait_all_tasks_blocked()
        assert (unread.size > 8_000, endpoint.let_go) == (True, False)
        line.say([call("wait"), call("echo", "x" * 8_000)])
        await wait_all_tasks_blocked()
        assert endpoint.let_go


def call(method: str, text: str = "") -> dict[str, Any]:
    """Return a request of a batch."""
    return {"jsonrpc": "2.0", "id": method, "method": method, "params": [text]}


async def test_bad_messages_get_an_error_and_the_next_is_answered() -> None:
    """A message that is no JSON, no request, or was not read costs nothing but itself."""
    async with opened(Echo()) as (_, line):
        line.say(b"{")
        line.say(b"7")
        line.say(Unreadable("has more than 5 bytes"))
        line.call(1, "echo")
        await wait_all_tasks_blocked()
        assert errors(line.sent) == [(None, -32700), (None, -32600), (None, -32600)]
        assert line.sent[2]["error"]["message"] == "$: the message has more than 5 bytes"
        assert line.sent[-1]["id"] == 1


async def test_a_message_that_is_too_long_has_its_id() -> None:
    """A request is answered under it, and a response ends the request that it is for."""
    long = b'{"jsonrpc":"2.0","id":7,"method":"echo","params":["' + b"x" * 9_000
    async with opened(Echo()) as (endpoint, line):
        line.say(Unreadable.too_long(5, long[:EDGE], long[-EDGE:]))
        await wait_all_tasks_blocked()
        line.say(Unreadable.too_long(5, long.replace(b"7", b'"\\ud800"'), b""))
        await wait_all_tasks_blocked()
        assert errors(line.sent) == [(7, -32600), (None, -32600)]
        found: list[object] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                found.append((await endpoint.ask("say", {})).error)

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            number = line.sent[-1]["id"]
            line.say(Unreadable.too_long(5, b'{"jsonrpc":"2.0","result":{"a":"x', b'x"},"id":%d}' % number))
        assert found == [{"message": "the message has more than 5 bytes"}]


@pytest.mark.parametrize(
    ("head", "tail", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"', b'"}}', (7, False)),
        (b' { "method" : "m", "params" : {"id": 3, "a": "', b'"}, "id" : "a\\"b" , "jsonrpc": "2.0"} ', ('a"b', False)),
        (b'{"method":"m","params":{"a":"', b'","id":3}}', (None, False)),
        (b'{"method":"m","params":{"a":"', b'\\",\\"id\\":3}"}}', (None, False)),
        (b'{"id":5,"jsonrpc":"2.0","result":{"a":"', b'"}}', (5, True)),
        (b'{"jsonrpc":"2.0","error":{"a":"', b'"},"id":1.5}', (1.5, True)),
        (b'{"id":true,"method":"m","params":["', b'"]}', (None, False)),
        (b'{"id":"\xff","method":"m","params":["', b'"]}', (None, False)),
        (b'{"id":"\\ud800","method":"m","params":["', b'"]}', (None, False)),
        (b'{"id":1e999,"method":"m","params":["', b'"]}', (None, False)),
        (b'[{"id":1,"method":"m","params":["', b'"]}]', (None, False)),
        (b"\xff\x00", b"", (None, False)),
    ],
)
def test_the_outline_of_a_long_message(head: bytes, tail: bytes, found: tuple[object, bool]) -> None:
    """Its id is found before or behind its parameters, and never within them."""
    assert jsonrpc.outline(head + b"x" * 100, b"x" * 100 + tail) == found


async def test_it_asks() -> None:
    """Requests of both sides run at once; each answer reaches its own, and answers to nothing are dropped."""
    answers: dict[str, object] = {}

    async def ask(endpoint: Endpoint, method: str) -> None:
        answers[method] = (await endpoint.ask(method, {"of": method})).result

    async with opened(Echo()) as (endpoint, line):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, endpoint, "a")
            nursery.start_soon(ask, endpoint, "b")
            await wait_all_tasks_blocked()
            line.call(1, "echo")
            numbers = {each["method"]: each["id"] for each in line.sent}
            for strange in ("x", 99, None):
                line.say({"jsonrpc": "2.0", "id": strange, "result": "strange"})
            for method in ("b", "a", "a"):
                line.say({"jsonrpc": "2.0", "id": numbers[method], "result": method * 2})
        assert answers == {"a": "aa", "b": "bb"}
        await wait_all_tasks_blocked()
        assert [each["id"] for each in line.sent if "result" in each] == [1]


async def test_a_request_that_was_cancelled_forgets_its_answer() -> None:
    """The next request has an id of its own, and a late answer does not reach it."""
    async with opened(Echo()) as (endpoint, line):
        with trio.move_on_after(0.01):
            await endpoint.ask("slow", {})
        (late,) = line.sent
        async with trio.open_nursery() as nursery:

            async def ask_next() -> None:
                assert (await endpoint.ask("fast", {})).result == "new"

            nursery.start_soon(ask_next)
            await wait_all_tasks_blocked()
            line.say({"jsonrpc": "2.0", "id": late["id"], "result": "old"})
            line.say({"jsonrpc": "2.0", "id": line.sent[1]["id"], "result": "new"})


@pytest.mark.parametrize("how", ["hangs up", "reads no more"])
async def test_a_side_that_is_gone_is_not_waited_for(how: str) -> None:
    """Requests to it end with an error, those that wait and those that come later."""
    gone = list[str]()

    async def ask(endpoint: Endpoint, method: str) -> None:
        try:
            await endpoint.ask(method, {})
        except GoneError:
            gone.append(method)

    async with opened(Echo(), reads=False) as (endpoint, line), trio.open_nursery() as nursery:
        nursery.start_soon(ask, endpoint, "early")
        await wait_all_tasks_blocked()
        assert gone == []
        if how == "hangs up":
            line.hang_up()
        else:
            line.gone = True
        line.reads.set()
        await wait_all_tasks_blocked()
        await ask(endpoint, "late")
        assert gone == ["early", "late"]


async def test_what_json_cannot_hold_is_not_asked() -> None:
    """The one who asks is told; nothing is sent."""
    async with opened(Echo()) as (endpoint, line):
        with pytest.raises(ValueError, match="surrogates"):
            await endpoint.ask("a", {"x": "\ud800"})
        await wait_all_tasks_blocked()
        assert line.sent == []


async def test_methods_begin_in_the_order_of_the_messages() -> None:
    """No message is looked at before the one before it has begun."""
    side = Echo()
    async with opened(side) as (_, line):
        methods = ["echo", "now", "bad", "nothing", "quiet"]
        for number, method in enumerate(methods):
            line.call(number, method)
        await wait_all_tasks_blocked()
        assert side.seen == methods


async def test_a_reader_that_is_slow_is_not_read_from() -> None:
    """Once as many replies wait as requests may run, nothing more is taken until the other side reads."""
    side = Echo()
    async with opened(side, reads=False, bounds=EndpointBounds(max_in_flight=4)) as (_, line):
        line.call(0, "now")
        await wait_all_tasks_blocked()
        for number in range(1, 20):
            line.call(number, "now")
        await wait_all_tasks_blocked()
        assert len(side.seen) == 5
        line.reads.set()
        await wait_all_tasks_blocked()
        assert [each["id"] for each in line.sent] == list(range(20))


async def test_large_results_wait_for_the_reader() -> None:
    """Of many requests for large results a few are made, and the others once these were read."""
    text = "x" * 1000
    bounds = EndpointBounds(max_in_flight=100, outbox_bytes=3000)
    async with opened(Echo(), reads=False, bounds=bounds) as (endpoint, line):
        for number in range(10):
            line.call(number, "large", x=text)
        await wait_all_tasks_blocked()
        assert endpoint.outbox.reply_bytes < 6 * len(text)
        line.reads.set()
        await wait_all_tasks_blocked()
        assert len(line.sent) == 10


async def test_a_notification_waits_for_room_and_keeps_its_place() -> None:
    """The sender waits for a slow reader, replies do not; everything leaves in the order in which it was put in."""
    side, told = Echo(), list[int]()

    async def tell(endpoint: Endpoint) -> None:
        for number in range(20):
            await endpoint.tell(jsonrpc.notification("n", number))
            told.append(number)

    async with (
        opened(side, reads=False, bounds=EndpointBounds(max_in_flight=4, outbox_events=5)) as (endpoint, line),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(tell, endpoint)
        await wait_all_tasks_blocked()
        assert 5 <= len(told) < 20
        line.call(1, "now")
        await wait_all_tasks_blocked()
        assert side.seen == ["now"]
        before = len(told)
        line.reads.set()
        await wait_all_tasks_blocked()
        assert [each["params"] for each in line.sent if "params" in each] == list(range(20))
        assert [each.get("id") for each in line.sent].index(1) == before


async def test_a_sender_of_notifications_learns_nothing_of_a_reader_that_is_gone() -> None:
    """Its messages go nowhere, and does not wait."""
    async with opened(Echo()) as (endpoint, line):
        line.gone = True
        for number in range(1000):
            await endpoint.tell(jsonrpc.notification("n", number))
            await trio.lowlevel.checkpoint()


@pytest.mark.virtual_time
async def test_the_end_of_the_input_lets_requests_end() -> None:
    """Requests may go on for `linger` seconds; then turns are ended, and the rest is told that the server ends."""
    began, ended = trio.current_time(), list[float]()

    async def end_turns() -> None:
        await trio.lowlevel.checkpoint()
        ended.append(trio.current_time() - began)

    side = Echo()
    async with opened(side, bounds=EndpointBounds(4, linger=3.0), end_turns=end_turns) as (_, line):
        line.call(1, "wait")
        line.hang_up()
    assert ended == [3]
    assert trio.current_time() - began == 3.5
    assert side.seen == ["wait", "[hung up]", "[abandoned]"]
    assert line.sent[0]["error"]["data"]["details"]["cause"] == "shutting_down"


@pytest.mark.virtual_time
async def test_a_stop_answers_what_runs_and_ends() -> None:
    """Nothing more is read, and what still runs after a moment is answered with an error."""
    began = trio.current_time()
    side = Echo()
    async with opened(side, bounds=EndpointBounds(4)) as (endpoint, line):
        line.call(1, "wait")
        await wait_all_tasks_blocked()
        endpoint.serving.cancel()
        line.call(2, "echo")
    assert trio.current_time() - began == GRACE
    assert errors(line.sent) == [(1, -32000)]
    assert side.seen == ["wait", "[hung up]", "[abandoned]"]


@pytest.mark.virtual_time
async def test_a_stop_waits_for_what_is_nearly_done() -> None:
    """A request that ends within the moment gets its result."""
    side = Echo()
    async with opened(side, bounds=EndpointBounds(4)) as (endpoint, line):
        line.call(1, "wait")
        await wait_all_tasks_blocked()
        endpoint.serving.cancel()
        await trio.sleep(0.4)
        side.go.set()
    assert [each.get("result") for each in line.sent] == ["waited"]


@pytest.mark.virtual_time
async def test_a_reader_that_reads_nothing_does_not_hold_up_the_end() -> None:
    """Messages that wait are dropped after `close_timeout` seconds."""
    began = trio.current_time()
    async with opened(Echo(), reads=False, bounds=EndpointBounds(4, close_timeout=2.0)) as (_, line):
        line.call(1, "now")
        line.hang_up()
    assert trio.current_time() - began == 2
    assert line.sent == []


@pytest.mark.parametrize(("needs", "seen"), [(True, ["now", "[hung up]", "[abandoned]"]), (False, ["now", "now"])])
async def test_an_endpoint_may_go_on_without_a_reader(needs: bool, seen: list[str]) -> None:  # noqa: FBT001
    """If it needs its reader it stops with it; else the requests of the other side are still done."""
    side = Echo()
    async with opened(side, bounds=EndpointBounds(4, needs_reader=needs)) as (_, line):
        line.gone = True
        line.call(1, "now")
        await wait_all_tasks_blocked()
        line.call(2, "now")
        await wait_all_tasks_blocked()
        assert side.seen == seen


@pytest.mark.parametrize(
    ("refuse", "number"),
    [(jsonrpc.error, -32602), (lambda request_id, exc: jsonrpc.error(request_id, exc, 5), 5)],
    ids=["by the table", "by its own"],
)
async def test_a_side_has_its_own_numbers(
    refuse: Callable[[jsonrpc.Id, WarrenError], bytes], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every error of a request goes through `refuse`."""
    side = Echo()
    monkeypatch.setattr(side, "refuse", refuse)
    async with opened(side) as (_, line):
        line.call(1, "bad")
        await wait_all_tasks_blocked()
        assert errors(line.sent) == [(1, number)]
