"""The call that a tool works on: its place in the session, and a key that outlives a lost turn."""

import json
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import json_values, text
from tests.support.faulty_store import Faults
from tests.support.models import reply, says
from tests.support.runtime import new_session, open_runtime, storage_of
from warren.base.errors import StoreError
from warren.conversation import codec
from warren.conversation.completion import CompletionKey
from warren.conversation.messages import ToolUseBlock
from warren.models.tools import ToolContext, current_call, tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time


@tool
async def where(text: Annotated[str, "any"]) -> str:
    """Tell the call."""
    call = current_call()
    SEEN.append((text, call))
    return call.key


SEEN: list[tuple[str, ToolContext]] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    """Forget the calls of other tests."""
    SEEN.clear()


def use(call_id: str, text: str) -> ToolUseBlock:
    """Return a call."""
    return ToolUseBlock(call_id, "where", {"text": text})


async def test_calls_are_numbered_through_the_turn() -> None:
    """Over all its steps, in which a call with the id of an earlier one gets another; the next turn begins anew."""
    model = says(
        reply("", use("a", "x"), use("b", "x")),
        reply("", use("a", "y")),
        reply("one"),
        reply("", use("a", "x")),
        reply("two"),
    )
    async with open_runtime(model, tools=[where]) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        await service.start_turn(session_id, "go on")
    found = [(call.turn, call.number, call.call_id, text) for text, call in SEEN]
    assert sorted(found) == [(1, 1, "a", "x"), (1, 2, "b", "x"), (1, 3, "a-2", "y"), (2, 1, "a", "x")]
    assert {call.session_id for _, call in SEEN} == {session_id}
    assert len({call.key for _, call in SEEN}) == 4


async def test_a_turn_that_is_run_again_gives_the_same_keys(tmp_path: Path) -> None:
    """The store refused the first run. The model gives other ids; a call with other arguments has another key."""
    faults = Faults()
    model = says(
        reply("", use("a1", "x"), use("a2", "y")), reply("one"), reply("", use("b1", "x"), use("b2", "z")), reply("two")
    )
    config = Config(durability="turn")
    async with open_runtime(model, tools=[where], store=tmp_path, config=config, faults=faults) as service:
        session_id = await new_session(service)
        faults.too_large = True
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go")
        faults.too_large = False
        await service.start_turn(session_id, "go")
    keys = {call.call_id: call.key for _, call in SEEN}
    assert keys["a1"] == keys["b1"]
    assert keys["a2"] != keys["b2"]


async def test_the_key_of_the_prompt_stands_for_the_turn() -> None:
    """The same call has one key for each key of a prompt, whichever turn it is."""
    model = says(*[step for _ in range(4) for step in (reply("", use("a", "x")), reply("done"))])
    async with open_runtime(model, tools=[where]) as service:
        session_id = await new_session(service)
        for key in ("k", "l"):
            await service.start_turn(session_id, "go", mode="queue", idempotency_key=key)
        await service.start_turn(session_id, "go")
    first, second, third = (call for _, call in SEEN)
    assert [each.prompt_key for each in (first, second, third)] == ["k", "l", None]
    assert len({each.key for each in (first, second, third)}) == 3
    again = attrs.evolve(first, turn=9, call_id="b")
    assert again.key == first.key


@given(st.dictionaries(text, json_values), st.none() | st.just("k"))
def test_the_key_is_the_same_in_another_process(args: dict[str, Any], prompt_key: str | None) -> None:
    """Arguments that a store had, in whatever order, give the key that the arguments of the model gave."""
    said = codec.parse(json.dumps(args))
    kept = codec.parse(codec.encode(dict(reversed(said.items()))))
    first = ToolContext("s", 3, 2, "a", "where", said, prompt_key)
    assert attrs.evolve(first, args=kept, call_id="a-2").key == first.key


async def test_there_is_no_call_outside_of_a_tool() -> None:
    """The error says what is wrong."""
    with pytest.raises(RuntimeError, match="inside of the tool"):
        current_call()


@tool
def hand_out() -> str:
    """Return the token of the call, from a thread."""
    return current_call().token(expires=60)


async def test_a_tool_gets_the_completion_token_of_its_call(tmp_path: Path) -> None:
    """In a thread, and after a restart: the token is of the call, and signed with the secret of the store."""
    secrets = set[bytes]()
    for _ in range(2):
        model = says(reply("", ToolUseBlock("a", "hand_out", {})), reply("done"))
        async with open_runtime(model, tools=[hand_out], store=tmp_path) as service:
            session_id = await new_session(service)
            await service.start_turn(session_id, "go")
            store = await storage_of(service).reader()
            secrets.add(secret := await store.secret("completions"))
            (result,) = [
                result
                for entry in (await service.history(session_id)).messages
                for result in getattr(entry.message, "results", ())
            ]
        claims = CompletionKey(secret).verified(result.content, "default")
        assert (claims.session_id, claims.call_id) == (session_id, "a")
        assert claims.key.startswith(f"{session_id}:1:1:")
    assert len(secrets) == 1
