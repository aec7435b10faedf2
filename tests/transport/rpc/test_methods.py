"""The table of methods: what each takes, what it calls, what it answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from importlib import metadata
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.asking import ask
from tests.support.completions import token_for
from tests.support.fake_service import ENTRY, FakeService, FakeTurn, hit, until_interrupted
from warren.base.errors import AgentError, InvalidParamsError, MemoryDisabledError
from warren.calls.reading import WatchRequest
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.options import CompactionConfig
from warren.conversation.views import TurnResult
from warren.models.tools import tool
from warren.settings.config import Config, StoreConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.client_tools import ClientTools, ExecuteTool
from warren.transport.rpc.endpoint import GoneError
from warren.transport.rpc.methods import METHODS, Caller, Host, RunTurn
from warren.transport.rpc.settings import Settings
from warren.transport.rpc.uploads import Room, Uploads

SECRET = "t0ken"  # noqa: S105 - not one of ours


@attrs.define
class FakeCaller(Caller):
    """Notes what it is asked; its events go nowhere.

    Attributes:
        tools: the tools that it runs itself.
    """

    calls: list[tuple[Any, ...]] = attrs.field(factory=list)
    tools: ClientTools | None = None
    uploads: Uploads = attrs.field(factory=lambda: Uploads(Room()))

    async def stream(self, session_id: str | None, run: RunTurn) -> TurnResult:
        self.calls.append(("stream", session_id))
        return await run(None)

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:
        await trio.lowlevel.checkpoint()
        self.calls.append(("subscribe", session_id, after_seq))
        return after_seq or 0

    def unsubscribe(self, session_id: str) -> bool:
        self.calls.append(("unsubscribe", session_id))
        return session_id == "s1"

    async def watch(self, wanted: WatchRequest) -> None:
        await trio.lowlevel.checkpoint()
        self.calls.append(("watch", wanted))


async def call(
    name: str, service: FakeService | None = None, caller: FakeCaller | None = None, **params: object
) -> object:
    """Call a method as a surface does."""
    method = METHODS[name]
    host = Host(service or FakeService(), Settings(gateway={"max_in_flight": 3}))
    return await method.call(host, caller or FakeCaller(), codec.from_data(method.decoded, params))


def test_the_table_has_the_contracts_methods() -> None:
    """Every method is there under its name, with a line of documentation."""
    assert list(METHODS) == [
        "initialize",
        "initialized",
        "session/create",
        "session/resume",
        "session/read",
        "session/list",
        "session/history",
        "file/put",
        "session/attachment",
        "session/context",
        "session/archive",
        "session/delete",
        "session/compact",
        "session/fork",
        "session/delegate",
        "session/label",
        "session/inject_context",
        "session/inputs",
        "session/withdraw",
        "session/subscribe",
        "session/unsubscribe",
        "session/watch",
        "session/unwatch",
        "turn/start",
        "turn/wait",
        "turn/interrupt",
        "tool/approve",
        "tool/complete",
        "approvals/list",
        "agents/list",
        "agents/get",
        "schedule/create",
        "schedule/change",
        "schedule/delete",
        "schedule/list",
        "trigger/create",
        "trigger/change",
        "trigger/delete",
        "trigger/list",
        "webhook/create",
        "webhook/change",
        "webhook/delete",
        "delivery/list",
        "delivery/resend",
        "webhook/list",
        "peer/send",
        "peer/list",
        "tools/register",
        "memory/search",
        "memory/forget",
        "audit/list",
        "usage/get",
        "nodes/list",
        "nodes/drain",
        "tenants/list",
        "store/check",
        "capabilities/get",
        "config/get",
        "health",
        "metrics/get",
        "metrics/history",
    ]
    for name, method in METHODS.items():
        assert method.name == name
        assert method.doc.endswith(".")


TOKEN = token_for("s1")
TOOL = {"name": "a", "description": "", "input_schema": {}}
BAD_PARAMS: list[tuple[str, Any, str]] = [
    ("health", [], "$"),
    ("health", None, "$"),
    ("health", "x", "$"),
    ("health", {"x": 1}, "$.x"),
    ("initialize", {"client_info": "me"}, "$.client_info"),
    ("session/create", {}, "$.prompt"),
    ("session/create", {"prompt": 1}, "$.prompt"),
    ("session/create", {"prompt": "hi", "modle": "x"}, "$.modle"),
    ("session/create", {"prompt": "hi", "max_tokens": 0}, "$.max_tokens"),
    ("session/create", {"prompt": "hi", "max_tokens": True}, "$.max_tokens"),
    ("session/create", {"prompt": "hi", "max_tokens": 2**64}, "$.max_tokens"),
    ("session/create", {"prompt": "hi", "labels": {"a": 1}}, "$.labels.a"),
    ("session/create", {"prompt": "hi", "labels": ["a"]}, "$.labels"),
    ("session/create", {"prompt": "hi", "tools": "a"}, "$.tools"),
    ("session/create", {"prompt": "hi", "tools": ["a", 2]}, "$.tools[1]"),
    ("session/create", {"prompt": "hi", "budget": {"max_steps": -1}}, "$.budget.max_steps"),
    ("session/create", {"prompt": "hi", "budget": {"max_stepz": 1}}, "$.budget.max_stepz"),
    ("session/create", {"prompt": "hi", "compaction": True}, "$.compaction"),
    ("session/create", {"prompt": "hi", "compaction": {"windw": 1}}, "$.compaction.windw"),
    ("session/create", {"prompt": "hi", "compaction": {"window": "1"}}, "$.compaction.window"),
    ("session/create", {"prompt": "hi", "compaction": {"recent_turn_budget": None}}, "$.compaction.recent_turn_budget"),
    (
        "session/create",
        {"prompt": "hi", "compaction": {"auto_compact_threshold": 0}},
        "$.compaction.auto_compact_threshold",
    ),
    (
        "session/create",
        {"prompt": "hi", "compaction": {"max_summary_tokens": 2**64}},
        "$.compaction.max_summary_tokens",
    ),
    ("session/compact", {}, "$.session_id"),
    ("session/compact", {"session_id": "s1", "instructions": ["x"]}, "$.instructions"),
    ("session/compact", {"session_id": "s1", "instruction": "x"}, "$.instruction"),
    ("session/read", {}, "$.session_id"),
    ("session/read", {"session_id": None}, "$.session_id"),
    ("session/read", {"session_id": 5}, "$.session_id"),
    ("session/list", {"limit": 0}, "$.limit"),
    ("session/list", {"limit": 1001}, "$.limit"),
    ("session/list", {"limit": "10"}, "$.limit"),
    ("session/list", {"offset": -1}, "$.offset"),
    ("session/list", {"include_archived": 1}, "$.include_archived"),
    ("session/history", {"session_id": "s1", "offset": 1.5}, "$.offset"),
    ("session/subscribe", {"session_id": "s1", "after_seq": -1}, "$.after_seq"),
    ("session/subscribe", {"session_id": "s1", "after_seq": "0"}, "$.after_seq"),
    ("turn/start", {"session_id": "s1"}, "$.prompt"),
    ("turn/start", {"session_id": "s1", "prompt": None}, "$.prompt"),
    ("turn/start", {"session_id": "s1", "prompt": "hi", "system_prompt": "x"}, "$.system_prompt"),
    ("turn/interrupt", {"session": "s1"}, "$.session_id"),
    ("turn/start", {"session_id": "s1", "prompt": "hi", "mode": "later"}, "$.mode"),
    ("turn/start", {"session_id": "s1", "prompt": "hi", "idempotency_key": "k" * 201}, "$.idempotency_key"),
    ("session/create", {"prompt": "hi", "peer": {"name": "a b"}}, "$.peer.name"),
    ("session/inject_context", {"session_id": "s1", "text": " "}, "$.text"),
    ("session/withdraw", {"session_id": "s1"}, "$.input_id"),
    ("peer/send", {"session_id": "s1", "body": "hi"}, "$.to"),
    ("peer/send", {"session_id": "s1", "to": "b", "body": "hi", "kind": "response", "status": "ok"}, "$.request_id"),
    ("peer/send", {"session_id": "s1", "to": "b", "body": "hi", "kind": "request", "status": "ok"}, "$.status"),
    ("tool/approve", {"session_id": "s1", "call_id": "c", "decision": "yes"}, "$.decision"),
    ("tool/complete", {"token": TOKEN}, "$.result"),
    ("tool/complete", {"token": TOKEN[:-1], "result": 1}, "$.token"),
    ("tool/complete", {"token": TOKEN, "result": 1, "is_error": 1}, "$.is_error"),
    ("tool/approve", {"session_id": "s1", "call_id": "c", "decision": "deny", "remember": True}, "$.remember"),
    ("session/label", {"session_id": "s1", "ask_again": "dig"}, "$.ask_again"),
    ("tools/register", {}, "$.tools"),
    ("tools/register", {"tools": [{"name": "a", "description": ""}]}, "$.tools[0].input_schema"),
    ("tools/register", {"tools": [TOOL, {**TOOL, "input_schema": []}]}, "$.tools[1].input_schema"),
    ("tools/register", {"tools": [{**TOOL, "name": "a b"}]}, "$.tools[0].name"),
    ("tools/register", {"tools": [{**TOOL, "name": "x" * 65}]}, "$.tools[0].name"),
    ("tools/register", {"tools": [TOOL, TOOL]}, "$.tools[1].name"),
    ("tools/register", {"tools": [{**TOOL, "name": f"t{n}"} for n in range(129)]}, "$.tools"),
    ("memory/search", {}, "$.query"),
    ("memory/search", {"query": ["x"]}, "$.query"),
    ("memory/search", {"query": "x", "scope": "world"}, "$.scope"),
    ("memory/search", {"query": "x", "limit": 0}, "$.limit"),
    ("memory/search", {"query": "x", "limit": 21}, "$.limit"),
    ("memory/search", {"query": "x", "limit": "5"}, "$.limit"),
    ("memory/search", {"query": "x", "session": "s1"}, "$.session"),
]


@pytest.mark.parametrize(("name", "params", "path"), BAD_PARAMS)
def test_bad_params_name_the_field(name: str, params: object, path: str) -> None:
    """Whatever is wrong with the parameters, the error has the path of the bad field, in its text too."""
    with pytest.raises(InvalidParamsError) as caught:
        codec.from_data(METHODS[name].decoded, params)
    assert caught.value.path == path
    assert caught.value.message.startswith(path)


async def test_initialize_says_who_answers() -> None:
    """A client learns the server's name, version, methods and capabilities; what it says of itself is its own."""
    answer: Any = await call("initialize", client_info={"name": "test", "anything": [1]})
    assert answer["server_info"] == {"name": "warren", "version": metadata.version("warren")}
    assert answer["protocol"] == "2.0"
    assert list(answer["methods"]) == list(METHODS)
    assert answer["capabilities"] == {"session_store": False, "session_compaction": False, "memory_store": False}
    assert await call("initialize") == answer


async def test_create_passes_every_option_on() -> None:
    """The fields of the request reach the service, and nothing else."""
    service, caller = FakeService(), FakeCaller()
    given = {
        "prompt": None,
        "model": "m",
        "provider": "p",
        "system_prompt": "s",
        "max_tokens": 5,
        "labels": {"a": "b"},
        "tools": ["t"],
        "output_schema": {"type": "object"},
        "structured_output_retries": 0,
        "temperature": 0.5,
        "top_p": 1,
        "title": "t",
        "idempotency_key": "k",
    }
    answer = await call("session/create", service, caller, **given, budget={"max_steps": 2}, compaction={"window": 9})
    options = {"tools": ("t",), "budget": Budget(max_steps=2), "compaction": CompactionConfig(window=9)}
    made = {**given, **options}
    assert service.calls == [("create_session", made)]
    assert caller.calls == [("stream", None)]
    assert isinstance(answer, dict)
    assert answer["session_id"] == "n1"


async def test_start_passes_every_option_on() -> None:
    """A turn's options reach the service, and its events the caller."""
    service, caller = FakeService(), FakeCaller()
    given = {"session_id": "s1", "prompt": "hi", "model": "m", "provider": "p", "max_tokens": 5, "temperature": 2}
    given |= {"output_schema": {"type": "object"}, "structured_output_retries": 1}
    given |= {"mode": "queue", "idempotency_key": "k"}
    answer = await call("turn/start", service, caller, **given, budget=None)
    assert service.calls == [("start_turn", given)]
    assert caller.calls == [("stream", "s1")]
    assert isinstance(answer, dict)
    assert (answer["text"], answer["stop_reason"]) == ("hi", "end_turn")


async def _unasked(_method: str, _params: ExecuteTool) -> jsonrpc.Response:
    raise GoneError


async def test_tools_of_the_caller_go_with_its_turns() -> None:
    """The caller's own tools are offered in the turns that it starts; it need not name them."""

    @tool
    def lookup() -> str:
        """Look it up."""
        return "found"

    service, caller = FakeService(), FakeCaller(tools=ClientTools(_unasked, (lookup,)))
    await call("session/create", service, caller, prompt="x")
    await call("turn/start", service, caller, session_id="s1", prompt="x")
    assert [options["extra_tools"] for _, options in service.calls] == [(lookup,), (lookup,)]
    assert "tools" not in service.calls[0][1]


async def test_a_caller_that_runs_no_tools_says_so() -> None:
    """If nobody can be asked, tools are refused by the name of the field; none at all are fine."""
    assert await call("tools/register", tools=[]) == {"registered": 0}
    with pytest.raises(InvalidParamsError) as caught:
        await call("tools/register", tools=[TOOL])
    assert caught.value.path == "$.tools"


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_a_result_is_of_the_class_that_the_table_names(name: str) -> None:
    """The result of a method has the fields that its documentation and its schema are made of."""
    given: dict[str, Any] = {
        "session/create": {"prompt": "x"},
        "turn/start": {"session_id": "s1", "prompt": "x"},
        "session/attachment": {"session_id": "s1", "sha256": "0"},
        "session/label": {"session_id": "s1", "labels": {}},
        "session/delegate": {"session_id": "s1", "prompt": "x"},
        "session/inject_context": {"session_id": "s1", "text": "x"},
        "session/withdraw": {"session_id": "s1", "input_id": "i"},
        "tool/approve": {"session_id": "s1", "call_id": "c", "decision": "deny"},
        "tool/complete": {"token": TOKEN, "result": None},
        "schedule/create": {"prompt": "x", "every": "1h"},
        "schedule/change": {"schedule_id": "s"},
        "schedule/delete": {"schedule_id": "s"},
        "agents/get": {"name": "desk"},
        "trigger/create": {"prompt": "x"},
        "trigger/change": {"trigger_id": "t"},
        "trigger/delete": {"trigger_id": "t"},
        "webhook/create": {"url": "https://example.org"},
        "webhook/change": {"webhook_id": "w"},
        "webhook/delete": {"webhook_id": "w"},
        "delivery/list": {"webhook_id": "w"},
        "delivery/resend": {"webhook_id": "w"},
        "peer/send": {"session_id": "s1", "to": "b", "body": "x"},
        "tools/register": {"tools": []},
        "file/put": {"data": "AAAA", "size": 9},
        "memory/search": {"query": "x", "scope": "project"},
        "nodes/drain": {"name": "x"},
    }
    method = METHODS[name]
    takes = {field.name for field in attrs.fields(method.params)}
    params = codec.from_data(method.decoded, given.get(name, {"session_id": "s1"} if "session_id" in takes else {}))
    service = FakeService(hits=[])
    turns = {"turn/interrupt": running_turn, "turn/wait": turn_that_ends}
    async with turns[name](service, "s1") if name in turns else nullcontext():
        assert type(await method.handler(Host(service), FakeCaller(), params)) is method.result


@asynccontextmanager
async def running_turn(service: FakeService, session_id: str) -> AsyncIterator[None]:
    """Run a turn for a body; the body has to interrupt it."""
    service.behaviour = until_interrupted()
    async with trio.open_nursery() as nursery:
        turn = ask(nursery, service.start_turn, session_id, "go")
        await wait_all_tasks_blocked()
        yield
        assert (await turn.failure(AgentError)).cause == "cancelled"


@asynccontextmanager
async def turn_that_ends(service: FakeService, session_id: str) -> AsyncIterator[None]:
    """Run a turn for a body, which ends once the body waits."""
    may_end = trio.Event()

    async def answer(_turn: FakeTurn) -> None:
        await may_end.wait()

    async def let_end() -> None:
        await wait_all_tasks_blocked()
        may_end.set()

    service.behaviour = answer
    async with trio.open_nursery() as nursery:
        ask(nursery, service.start_turn, session_id, "go")
        await wait_all_tasks_blocked()
        nursery.start_soon(let_end)
        yield


async def test_a_wait_gets_the_result_of_the_turn() -> None:
    """The reply is that of the call that began the turn; it comes without events."""
    service, caller = FakeService(), FakeCaller()
    async with turn_that_ends(service, "s1"):
        ended = await call("turn/wait", service, caller, session_id="s1")
    assert isinstance(ended, dict)
    assert ended["text"] == "go"
    assert caller.calls == []


async def test_an_interrupt_ends_the_turn() -> None:
    """The reply comes when the turn has ended."""
    service = FakeService()
    async with running_turn(service, "s1"):
        assert await call("turn/interrupt", service, session_id="s1") == {"interrupted": True}
    assert service.called("interrupt") == [{"session_id": "s1"}]


def test_what_needs_a_capability_says_so() -> None:
    """The table knows which methods depend on what a build may lack."""
    assert {name: method.capability for name, method in METHODS.items() if method.capability} == {
        "session/resume": "session-store",
        "session/delete": "session-store",
        "session/compact": "session-compaction",
        "memory/search": "memory-store",
        "store/check": "session-store",
        "memory/forget": "memory-store",
    }


CALLS: list[tuple[str, dict[str, Any], tuple[str, dict[str, Any]], Any]] = [
    ("session/archive", {"session_id": "s1"}, ("archive", {"session_id": "s1"}), {"archived": True}),
    ("session/delete", {"session_id": "s1"}, ("delete", {"session_id": "s1"}), {"deleted": True}),
    (
        "session/inject_context",
        {"session_id": "s1", "text": "x", "source": "y"},
        ("inject_context", {"session_id": "s1", "text": "x", "source": "y", "idempotency_key": None}),
        {"injected": True},
    ),
    ("session/inputs", {"session_id": "s1"}, ("inputs", {"session_id": "s1"}), {"inputs": []}),
    (
        "session/withdraw",
        {"session_id": "s1", "input_id": "i"},
        ("withdraw", {"session_id": "s1", "input_id": "i"}),
        {"withdrawn": True},
    ),
    (
        "tool/approve",
        {"session_id": "s1", "call_id": "c", "decision": "deny", "reason": "no"},
        (
            "approve_tool",
            {"session_id": "s1", "call_id": "c", "decision": "deny", "reason": "no", "remember": False},
        ),
        {"decided": True},
    ),
    (
        "tool/complete",
        {"token": TOKEN, "result": [1]},
        ("complete_tool", {"token": TOKEN, "result": [1], "is_error": False}),
        {"completed": True},
    ),
    (
        "peer/send",
        {"session_id": "s1", "to": "b", "kind": "request", "body": "count", "params": {"to": 3}},
        (
            "send_message",
            {
                "session_id": "s1",
                "to": "b",
                "body": "count",
                "kind": "request",
                "params": {"to": 3},
                "request_id": None,
                "status": None,
            },
        ),
        {"message_id": "m1"},
    ),
    ("peer/list", {"session_id": "s1"}, ("peers", {"session_id": "s1"}), {"peers": []}),
    (
        "session/list",
        {"limit": 3, "labels": {"a": "b"}},
        (
            "list",
            {
                "offset": 0,
                "limit": 3,
                "labels": {"a": "b"},
                "include_archived": False,
                "turn_state": None,
                "delegated_by": None,
                "agent": None,
            },
        ),
        {"sessions": []},
    ),
    (
        "session/history",
        {"session_id": "s1", "offset": 4},
        ("history", {"session_id": "s1", "offset": 4, "limit": 100}),
        {"session_id": "s1", "messages": [], "offset": 4, "total": 0, "compactions": [], "kept_from": 0},
    ),
    (
        "session/compact",
        {"session_id": "s1", "instructions": "mind the names"},
        ("compact", {"session_id": "s1", "instructions": "mind the names"}),
        attrs.asdict(ENTRY),
    ),
    (
        "session/compact",
        {"session_id": "s1"},
        ("compact", {"session_id": "s1", "instructions": None}),
        attrs.asdict(ENTRY),
    ),
]


@pytest.mark.parametrize(("name", "params", "made", "answer"), CALLS)
async def test_what_a_method_calls_and_answers(
    name: str, params: dict[str, Any], made: tuple[str, dict[str, Any]], answer: object
) -> None:
    """Each method makes one call of the service and shows its result."""
    service = FakeService()
    assert await call(name, service, **params) == answer
    assert service.calls == [made]


async def test_a_search_of_the_memory() -> None:
    """The query reaches the service, one session by default; its hits come back under `hits`."""
    service = FakeService(hits=[hit("blue doors", 0.9, "s1", 3)])
    assert service.hits is not None
    found = {"hits": [codec.to_data(service.hits[0])]}
    assert await call("memory/search", service, query="doors", session_id="s1") == found
    assert await call("memory/search", service, query="doors", scope="project", limit=20) == found
    assert service.calls == [
        ("search_memory", {"query": "doors", "session_id": "s1", "scope": "session", "limit": 5}),
        ("search_memory", {"query": "doors", "session_id": None, "scope": "project", "limit": 20}),
    ]


async def test_forgetting_tells_how_many() -> None:
    """The session, and the turn or the text if one is named, reach the service; bad ones are named."""
    service = FakeService(hits=[hit("blue doors", 0.9, "s1", 3)])
    assert await call("memory/forget", service, session_id="s1", turn=3) == {"forgotten": 1}
    assert service.calls == [("forget_memory", {"session_id": "s1", "turn": 3, "text_id": None})]
    with pytest.raises(InvalidParamsError, match=r"\$\.text_id: must be the text_id of a hit"):
        await call("memory/forget", service, session_id="s1", text_id="the first")


async def test_a_search_where_nothing_is_remembered() -> None:
    """A runtime without a memory answers with the error that says so, -32007 to clients."""
    with pytest.raises(MemoryDisabledError) as caught:
        await call("memory/search", query="doors", scope="project")
    assert caught.value.numbers.jsonrpc == -32007


async def test_subscriptions_are_the_callers() -> None:
    """Following and leaving a session concerns the connection, not the service."""
    service, caller = FakeService(), FakeCaller()
    assert await call("session/subscribe", service, caller, session_id="s1", after_seq=3) == {
        "subscribed": True,
        "after_seq": 3,
    }
    assert await call("session/unsubscribe", service, caller, session_id="s1") == {"unsubscribed": True}
    assert await call("session/unsubscribe", service, caller, session_id="s2") == {"unsubscribed": False}
    assert caller.calls == [("subscribe", "s1", 3), ("unsubscribe", "s1"), ("unsubscribe", "s2")]
    assert service.calls == []


async def test_what_needs_no_session() -> None:
    """Settings, capabilities and health are answered from what is at hand."""
    assert await call("config/get") == {"gateway": {"max_in_flight": 3}}
    assert await call("capabilities/get") == {
        "session_store": False,
        "session_compaction": False,
        "memory_store": False,
    }
    health = await call("health")
    assert isinstance(health, dict)
    assert (health["status"], health["max_sessions"]) == ("ok", 10)
    assert await call("initialized") == {}


def test_public_settings_have_no_secrets(tmp_path: Any) -> None:
    """The answer of `config/get` has the limits, and neither token nor prompt nor path."""
    runtime = Config(store=StoreConfig(tmp_path), system_prompt="be secret", model="m")
    shown = GatewayConfig(token=SECRET, runtime=runtime).public()
    assert (shown.model, shown.stored, shown.compaction) == ("m", True, None)
    assert shown.limits is not None
    assert shown.limits["max_sessions"] == 10_000
    assert shown.gateway is not None
    assert shown.gateway["max_in_flight"] == 256
    assert not any(secret in repr(shown) for secret in (SECRET, "be secret", str(tmp_path)))


def test_public_settings_tell_how_contexts_are_compacted() -> None:
    """The answer of `config/get` has every setting of compaction, where it is on."""
    shown = GatewayConfig(runtime=Config(compaction=CompactionConfig(window=9))).public()
    assert shown.compaction == {
        "auto_compact_threshold": None,
        "recent_turn_budget": 4,
        "max_summary_tokens": 4096,
        "min_turns_between_compactions": 3,
        "window": 9,
    }
