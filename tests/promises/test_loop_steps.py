"""A client's or a model's data delays nobody else: no step of the event loop grows with it beyond a bound.

A step is counted in calls of functions, which are the same on every machine. A hundred thousand of them take some tens
of milliseconds.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from tests.support.runtime import open_runtime
from tests.support.steps import Calls, Steps
from warren.base.errors import WarrenError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.events import ToolCallRequested
from warren.conversation.messages import AssistantMessage, ToolUseBlock
from warren.conversation.views import TurnResult
from warren.settings.config import Config
from warren.transport.rpc.methods import METHODS

MOST = 15_000
ECHO = Config(model="echo")
OBJECTS = [{"a": number} for number in range(3_000)]
NAMES: dict[str, dict[str, Any]] = {str(number): {} for number in range(2_000)}
SCHEMAS: dict[str, dict[str, Any]] = {
    "unique": {"type": "array", "uniqueItems": True},
    "contains an enum": {"contains": {"enum": [{"b": number} for number in range(300)]}},
    "items against an enum": {"items": {"enum": [{"b": number} for number in range(1_500)]}},
    "one of many": {"items": {"oneOf": [{"const": number} for number in range(1_000)]}},
    "false many times": {"anyOf": [False] * 3_000},
    "a reference by anchor": {"items": {"$ref": "#x"}, "$defs": {"x": {"$anchor": "x"}, **NAMES}},
    "a reference by id": {"items": {"$ref": "b"}, "$id": "http://e.com/", "$defs": {"x": {"$id": "b"}, **NAMES}},
    "unevaluated items": {"unevaluatedItems": False, "prefixItems": [{}] * 2_000},
    "patterns": {"items": {"anyOf": [{"pattern": f"a{number}"} for number in range(700)]}},
    "a pattern without end": {"items": {"properties": {"a": {"pattern": "^(a|a)*$"}}}, "minItems": 4_000},
    "many names": {"required": [str(number) for number in range(4_000)]},
    "properties": {"properties": NAMES, "unevaluatedProperties": False},
    "plain": {"items": {"type": "object"}},
}


async def steps_of(call: Callable[[SessionService], Awaitable[object]]) -> Steps:
    """Return the steps of the loop while a runtime whose model echoes does something, whatever comes of it."""
    async with open_runtime(config=ECHO) as service:
        with Steps.counted() as steps:
            await trio.lowlevel.checkpoint()  # what ran before belongs to a step that nobody counted
            with suppress(WarrenError):
                await call(service)
            await trio.lowlevel.checkpoint()
    return steps


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_schema_delays_nobody(name: str) -> None:
    """However much work a client's schema is, the event loop does little of it at a time."""
    prompt, schema = codec.encode(OBJECTS).decode(), SCHEMAS[name]
    steps = await steps_of(
        lambda service: service.create_session(prompt, output_schema=schema, structured_output_retries=0)
    )
    assert steps.most < MOST, (name, steps.most, steps.task)


@pytest.mark.parametrize("size", [1, 10, 100, 1_000, 10_000])
@pytest.mark.parametrize("schema", [{"uniqueItems": True}, {"items": {"type": "object", "required": ["a"]}}])
async def test_work_of_the_loop_does_not_grow_with_an_answer(size: int, schema: dict[str, Any]) -> None:
    """Data of any size costs the loop no more than a bound for small data."""
    prompt = codec.encode([{"a": number} for number in range(size)]).decode()
    steps = await steps_of(
        lambda service: service.create_session(prompt, output_schema=schema, structured_output_retries=0)
    )
    assert steps.most < MOST, (size, steps.most, steps.task)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/create", {"prompt": None, "tools": [1] * 100_000}),
        ("session/create", {"prompt": None, "labels": dict.fromkeys(map(str, range(100_000)), 1)}),
        ("session/create", {"prompt": None, **dict.fromkeys(map(str, range(100_000)), 1)}),
    ],
)
def test_bad_fields_are_not_all_told(method: str, params: dict[str, Any]) -> None:
    """Of a hundred thousand bad fields the first is named, and the others cost nothing."""
    calls = Calls()
    with calls.counted(), pytest.raises(WarrenError):
        codec.from_data(METHODS[method].decoded, params)
    assert calls.number < MOST


def test_depth_is_looked_at_without_a_walk() -> None:
    """How deep JSON nests is known without a call for each of its lists."""
    calls = Calls()
    with calls.counted():
        codec.parse(b"[" + b"[[[],{}]]," * 20_000 + b'"]"]')
    assert calls.number < 100


def test_plain_data_is_written_without_a_walk() -> None:
    """Data of a model or a client is written by the encoder alone."""
    data = [{"a": [number]} for number in range(20_000)]
    values = (TurnResult("x", structured_output=data), ToolCallRequested("a", "b", {"x": data}))
    for value in (*values, AssistantMessage((ToolUseBlock("a", "b", {"x": data}),))):
        codec.encode(value)  # the first time the converter makes its hooks
        calls = Calls()
        with calls.counted():
            codec.encode(value)
        assert calls.number < 100
