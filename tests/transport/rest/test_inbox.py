"""Inputs to a session while it runs a turn, over plain HTTP."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.support.asking import ask
from tests.support.models import Puppet
from tests.support.runtime import new_session, transcript
from tests.support.waiting import inbox_has
from tests.transport.clients import HOST
from tests.transport.rest.clients import port_of, problem
from tests.transport.rest.serving import served
from warren.calls.facade import SessionService
from warren.conversation.messages import UserMessage


async def prompts(service: SessionService, session_id: str) -> list[str]:
    """Return what users have said."""
    messages = await transcript(service, session_id)
    return [message.content for message in messages if isinstance(message, UserMessage)]


async def post(http: httpx.AsyncClient, path: str, key: str | None = None, **body: Any) -> httpx.Response:
    """Send a body, and a key in the header where there is one."""
    return await http.post(path, json=body, headers={} if key is None else {"Idempotency-Key": key})


async def test_the_header_is_the_key() -> None:
    """A request that comes twice under it is taken once, for prompts and for context; the body may say the same."""
    async with served() as (service, http):
        session_id = await new_session(service)
        path = f"/sessions/{session_id}/messages"
        first = await post(http, path, "k1", prompt="hello there", mode="queue")
        again = await post(http, path, "k1", prompt="hello there", mode="queue", idempotency_key="k1")
        assert (first.status_code, again.json()) == (200, first.json())
        assert await prompts(service, session_id) == ["hello there"]
        for _ in range(2):
            told = await post(http, f"/sessions/{session_id}/context", "k2", text="it rains")
            assert (told.status_code, told.json()) == (200, {"injected": True})
        inputs = (await http.get(f"/sessions/{session_id}/inputs")).json()["inputs"]
        assert [(each["kind"], each["text"], each["key"]) for each in inputs] == [("context", "it rains", "k2")]


@pytest.mark.parametrize(
    ("key", "body", "status"),
    [
        ("one", {"mode": "queue", "idempotency_key": "another"}, 422),
        ("k" * 201, {"mode": "queue"}, 422),
        ("busy", {}, 422),
    ],
)
async def test_a_bad_key_is_named(key: str, body: dict[str, Any], status: int) -> None:
    """One that the body contradicts, one that is too long, and one where nothing waits."""
    async with served() as (service, http):
        session_id = await new_session(service)
        refused = await post(http, f"/sessions/{session_id}/messages", key, prompt="hi", **body)
        assert problem(refused) == (status, "INVALID_PARAMS", "$.idempotency_key")
        assert await prompts(service, session_id) == []


async def test_a_queued_prompt_is_shown_withdrawn_and_its_sender_told() -> None:
    """It is at a path of its own until a turn takes it."""
    model = Puppet()
    async with served(puppet=model) as (service, http), trio.open_nursery() as nursery:
        session_id = await new_session(service, provider="puppet", model="any")
        path = f"/sessions/{session_id}"
        nursery.start_soon(service.start_turn, session_id, "first")
        await model.reached(1)
        asked = ask(nursery, post, http, f"{path}/messages", prompt="second", mode="queue")
        await inbox_has(service, session_id, 1)
        (waiting,) = (await http.get(f"{path}/inputs")).json()["inputs"]
        there = f"{path}/inputs/{waiting['input_id']}"
        assert (await http.delete(there)).json() == {"withdrawn": True}
        assert problem(await asked.value()) == (409, "AGENT_ERROR", None)
        assert problem(await http.delete(there)) == (404, "INVALID_PARAMS", "$.input_id")
        model.say("done", None)


async def test_a_client_that_leaves_leaves_its_prompt(tmp_path: Path) -> None:
    """It breaks the connection off before any answer, and the prompt runs when its time has come."""
    model = Puppet()
    async with served(tmp_path, puppet=model) as (service, http), trio.open_nursery() as nursery:
        session_id = await new_session(service, provider="puppet", model="any")
        nursery.start_soon(service.start_turn, session_id, "first")
        await model.reached(1)
        body = b'{"prompt": "second", "mode": "queue"}'
        head = f"POST /sessions/{session_id}/messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        async with await trio.open_tcp_stream(HOST, port_of(http)) as stream:
            await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await inbox_has(service, session_id, 1)
        model.say("one", None, "two", None)
        while (await service.read(session_id)).state.last_assistant_text != "two":  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.001)
        assert await prompts(service, session_id) == ["first", "second"]


async def test_a_key_creates_one_session() -> None:
    """The header or the body has it; the second answer is the first one, and another prompt is refused by name."""
    async with served() as (service, http):
        first = await post(http, "/sessions", "k1", prompt="hello there")
        again = await post(http, "/sessions", prompt="hello there", idempotency_key="k1")
        assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
        assert again.headers["location"] == first.headers["location"]
        refused = await post(http, "/sessions", "k1", prompt="bye")
        assert problem(refused) == (409, "INVALID_PARAMS", "$.idempotency_key")
        assert await prompts(service, first.json()["session_id"]) == ["hello there"]
        assert len((await service.list()).sessions) == 1


@pytest.mark.parametrize("path", ["/sessions/{}", "/sessions/{}/labels"])
async def test_a_session_is_changed_in_part(path: str) -> None:
    """Labels and the title that are sent change, the others stay."""
    async with served() as (service, http):
        session_id = await new_session(service, labels={"a": "b"})
        answer = await http.patch(path.format(session_id), json={"title": "Mine"})
        state = answer.json()["state"]
        assert (answer.status_code, state["title"], state["labels"]) == (200, "Mine", {"a": "b"})
        answer = await http.patch(path.format(session_id), json={"labels": {"a": None, "c": "d"}})
        assert (answer.json()["state"]["title"], answer.json()["state"]["labels"]) == ("Mine", {"c": "d"})
