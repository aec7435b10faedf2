"""The service refuses the same as JSON-RPC: each parameter of each method, with each wrong type and bound."""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import attrs
import pytest

from tests.parity.arguments import METHODS as CALLS
from tests.parity.arguments import STREAMS, TOGETHER
from tests.support.completions import token_for
from tests.support.runtime import new_session, open_runtime
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.peers import Peer
from warren.settings.config import Config
from warren.transport.rpc.methods import METHODS

pytestmark = pytest.mark.virtual_time
JUNK: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 2**53 + 1, 2**64, "", " \n", "bogus", "x" * 300, "half a \ud800 character",
    [], [1], ["bogus"], ["bogus", ""], {}, {"a": 1}, {"a": None}, {"a": ["b"]},
)  # fmt: skip
NAMES: Final = {
    "session/create": "create_session",
    "session/resume": "resume",
    "session/read": "read",
    "session/list": "list",
    "session/history": "history",
    "session/context": "context",
    "session/attachment": "attachment",
    "session/archive": "archive",
    "session/delete": "delete",
    "session/compact": "compact",
    "session/fork": "fork",
    "session/delegate": "delegate",
    "session/label": "label",
    "session/inject_context": "inject_context",
    "session/inputs": "inputs",
    "session/withdraw": "withdraw",
    "session/subscribe": "subscribe",
    "session/watch": "watch",
    "turn/start": "start_turn",
    "turn/wait": "wait_turn",
    "turn/interrupt": "interrupt",
    "tool/approve": "approve_tool",
    "tool/complete": "complete_tool",
    "approvals/list": "approvals",
    "agents/list": "agents",
    "agents/get": "agent",
    "schedule/create": "create_schedule",
    "schedule/change": "change_schedule",
    "schedule/delete": "delete_schedule",
    "schedule/list": "schedules",
    "trigger/create": "create_trigger",
    "trigger/change": "change_trigger",
    "trigger/delete": "delete_trigger",
    "trigger/list": "triggers",
    "webhook/create": "create_webhook",
    "webhook/change": "change_webhook",
    "webhook/delete": "delete_webhook",
    "webhook/list": "webhooks",
    "delivery/list": "deliveries",
    "delivery/resend": "resend",
    "peer/send": "send_message",
    "peer/list": "peers",
    "memory/search": "search_memory",
    "memory/forget": "forget_memory",
    "audit/list": "audit",
    "usage/get": "usage",
    "nodes/drain": "drain_node",
    "tenants/list": "tenants",
}
GOOD: Final[Mapping[str, Any]] = {
    "name": "n",
    "prompt": "hi",
    "labels": {"team": "red"},
    "text": "hi",
    "input_id": "an-input",
    "to": "bob",
    "body": "hi",
    "call_id": "call-1",
    "decision": "allow",
    "query": "boat",
    "sha256": "0" * 64,
    "token": token_for("s"),
    "result": "done",
    "schedule_id": "a-schedule",
    "trigger_id": "a-trigger",
    "webhook_id": "a-webhook",
    "url": "https://example.org/hook",
}
MESSAGES: Final = ({"kind": "response", "request_id": "r", "status": "ok"}, {"kind": "message"}, {"kind": "request"})


def value_class(hint: Any) -> type | None:
    """Return the class of values that a parameter takes, if it takes one of ours."""
    if get_origin(hint) is tuple:
        return None
    return next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and attrs.has(each)), None)


def names_of(cls: type) -> set[str]:
    """Return the names of a class's fields."""
    return set(attrs.fields_dict(cls))


def needed_by(cls: type) -> set[str]:
    """Return the names of a class's fields that have no default."""
    return {each.name for each in attrs.fields(cls) if each.default is attrs.NOTHING}


def bad_params(method: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield parameters that JSON-RPC refuses for their values, with the path that it names."""
    fields = attrs.fields_dict(METHODS[method].params)
    good = {"session_id": "s", **GOOD} if method != "memory/search" else {"query": "boat", "session_id": "s"}
    base = {name: good[name] for name, field in fields.items() if field.default is attrs.NOTHING}
    base |= {"session_id": "s"} if "session_id" in fields else {}
    base |= TOGETHER.get(NAMES[method], {})
    for name, field in fields.items():
        inner = value_class(field.type)
        needed = dict.fromkeys(needed_by(inner), "ann") if inner else {}
        nested = [{**needed, each.name: junk} for each in attrs.fields(inner) for junk in JUNK] if inner else []
        messages = MESSAGES if method == "peer/send" else ({},)
        for value in (*JUNK, *nested):
            for extra in messages:
                params = {**base, **extra, name: value}
                if name == "new_session":  # the one or the other
                    del params["session_id"]
                try:
                    codec.from_data(METHODS[method].decoded, params)
                except InvalidParamsError as exc:
                    yield str(exc.path), params


def built(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of the service, with values made as a host makes them; these may refuse, too."""
    hints = {name: value_class(field.type) for name, field in attrs.fields_dict(METHODS[method].params).items()}
    made: dict[str, Any] = {}
    for name, value in params.items():
        cls = hints[name]
        known = cls is not None and isinstance(value, dict) and needed_by(cls) <= value.keys() <= names_of(cls)
        tuples = known or name in ("tools", "trusts")
        plain = (
            {key: tuple(each) if isinstance(each, list) else each for key, each in value.items()} if known else value
        )
        made[name] = cls(**plain) if known and cls is not None else tuple(value) if tuples and value == [] else value
    return made


async def call(service: SessionService, method: str, params: Mapping[str, Any]) -> None:
    """Call a method of the service with the parameters of JSON-RPC's."""
    arguments = built(method, params)
    if method in ("session/subscribe", "session/watch"):
        async with getattr(service, NAMES[method])(**arguments):
            return
    await getattr(service, NAMES[method])(**arguments)


def test_every_method_is_compared() -> None:
    """Each method of the service that takes arguments is one of the table's, or opens a stream with those of one."""
    assert {*NAMES.values(), *STREAMS} == set(CALLS)


@pytest.mark.parametrize(("method", "name"), NAMES.items())
def test_the_parameters_of_jsonrpc_are_the_arguments(method: str, name: str) -> None:
    """By name, kind and default, so that one class defines both; a program may pass objects of its own besides."""
    arguments = dict(inspect.signature(getattr(SessionService, name)).parameters)
    del arguments["self"]
    known = inspect.signature(METHODS[method].params).parameters
    assert {each: (arguments[each].kind, arguments[each].default) for each in known} == {
        each: (parameter.kind, parameter.default) for each, parameter in known.items()
    }
    assert set(arguments) - set(known) <= {"compactor", "extra_tools", "hooks", "on_begin", "on_event", "output_type"}


@pytest.mark.parametrize("method", NAMES)
async def test_what_jsonrpc_refuses_the_service_refuses(method: str, tmp_path: Path) -> None:
    """By the same field's name; nothing is made, nothing has changed, and what is stored can be read."""
    config = Config(compaction=CompactionConfig())
    async with open_runtime(store=tmp_path, config=config) as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        accepted = []
        for path, params in bad_params(method):
            known = {**params, "session_id": ann} if params.get("session_id") == "s" else params
            try:
                await call(service, method, known)
            except InvalidParamsError as exc:
                found = str(exc.path)
            except FieldValueError as exc:
                found = exc.field
            else:
                accepted.append(f"{params}: JSON-RPC says {path}")
                continue
            field = path.removeprefix("$.").split(".")[-1].split("[")[0]
            named = field in found or path.startswith(found) or f".{found}." in path
            assert named, (path, found, params)
        assert not accepted, "\n".join(accepted)
    async with open_runtime(store=tmp_path, config=config) as service:
        for session_id in (ann, bob):
            assert await service.inputs(session_id) == ()
            assert (await service.read(session_id)).state.message_count == 0
        assert len((await service.list(include_archived=True)).sessions) == 2


@pytest.mark.parametrize("params", [{"a": object()}, {"a": "\ud800"}, {1j: 1}])
async def test_a_message_that_is_no_json_is_refused(params: Any) -> None:
    """Data of a host that JSON cannot hold is refused by the field's name, before it is stored."""
    async with open_runtime() as service:
        ann = await new_session(service, peer=Peer("ann", ("bob",)))
        bob = await new_session(service, peer=Peer("bob", ("ann",)))
        with pytest.raises(InvalidParamsError) as caught:
            await service.send_message(ann, "bob", "count", kind="request", params=params)
        assert caught.value.path == "$.params"
        assert codec.encode(await service.inputs(bob)) == b"[]"
