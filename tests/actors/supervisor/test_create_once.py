"""Creating sessions under an idempotency key: one key, one session."""

from pathlib import Path

import apsw
import pytest
import trio

from tests.support.asking import ask
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel
from tests.support.runtime import open_runtime, storage_of, transcript
from warren.actors.calls.creating import create_once
from warren.actors.calls.service import Service
from warren.base.errors import InvalidParamsError, ProviderError, SessionNotFoundError, StoreError
from warren.base.principals import DEFAULT_TENANT
from warren.calls.creation import creation_of
from warren.conversation.budget import Budget
from warren.conversation.messages import UserMessage
from warren.conversation.peers import Peer
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest
from warren.storage.ephemeral.store import ENDED
from warren.storage.operations import Commit

virtual = pytest.mark.virtual_time


async def said(service: Service, session_id: str) -> list[str]:
    """Return what users have said in a session."""
    return [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]


async def count(service: Service) -> int:
    """Return how many sessions there are."""
    return len((await service.list(include_archived=True)).sessions)


@virtual
async def test_the_same_request_twice(store: Path | None) -> None:
    """It has the same result, and the prompt is said once; another key makes another session."""
    async with open_runtime(store=store) as service:
        first = await service.create_session("hello", idempotency_key="k", labels={"a": "b", "c": "d"})
        again = await service.create_session("hello", idempotency_key="k", labels={"c": "d", "a": "b"})
        assert again == first
        assert first.text == "hello"
        assert await said(service, first.session_id) == ["hello"]
        other = await service.create_session("hello", idempotency_key="l", labels={"a": "b", "c": "d"})
        assert other.session_id != first.session_id
        assert await count(service) == 2


@virtual
async def test_without_a_prompt(store: Path | None) -> None:
    """The second request finds the session, also once it has gone on."""
    async with open_runtime(store=store) as service:
        first = await service.create_session(None, idempotency_key="k")
        await service.start_turn(first.session_id, "hello")
        assert await service.create_session(None, idempotency_key="k") == TurnResult(first.session_id)
        assert await count(service) == 1


@virtual
async def test_ten_requests_at_once(store: Path | None) -> None:
    """All of them get the result of one turn, while it runs and after it; a name among peers is no obstacle."""
    calls = 0

    async def slow(_request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        raise ProviderError("not today", cause="unauthorized", retryable=False)

    async def create() -> str | None:
        with pytest.raises(ProviderError, match="not today") as caught:
            await service.create_session("hello", idempotency_key="k", peer=Peer("ann"))
        return caught.value.session_id

    async with open_runtime(FunctionModel(slow), store=store) as service:
        async with trio.open_nursery() as nursery:
            asked = [ask(nursery, create) for _ in range(10)]
        assert len({await each.value() for each in asked} | {await create()}) == 1
        assert (await count(service), calls) == (1, 1)


@virtual
async def test_a_key_with_other_parameters(store: Path | None) -> None:
    """It is refused by the name of the field, and of the parameters that differ."""
    async with open_runtime(store=store) as service:
        first = await service.create_session("hello", idempotency_key="k", title="One")
        with pytest.raises(InvalidParamsError, match=f"{first.session_id}.* budget, prompt, title: use") as caught:
            await service.create_session("bye", idempotency_key="k", budget=Budget(max_steps=3))
        assert caught.value.path == "$.idempotency_key"
        assert await count(service) == 1


@virtual
@pytest.mark.parametrize("key", ["", " ", "k" * 201, 7])
async def test_a_key_that_cannot_be(key: str) -> None:
    """It is refused before anything is made."""
    async with open_runtime() as service:
        with pytest.raises(InvalidParamsError) as caught:
            await service.create_session(None, idempotency_key=key)
        assert caught.value.path == "$.idempotency_key"
        assert await count(service) == 0


@virtual
async def test_a_restart(tmp_path: Path) -> None:
    """The key is as good as before, whatever was said since."""
    async with open_runtime(store=tmp_path) as service:
        first = await service.create_session("hello", idempotency_key="k")
        await service.start_turn(first.session_id, "more")
    async with open_runtime(store=tmp_path) as service:
        assert await service.create_session("hello", idempotency_key="k") == first
        assert await said(service, first.session_id) == ["hello", "more"]
        with pytest.raises(InvalidParamsError):
            await service.create_session("bye", idempotency_key="k")


@virtual
async def test_the_result_outlives_a_thousand_others_in_memory() -> None:
    """The outcome of the first prompt is kept for as long as its session."""
    async with open_runtime() as service:
        first = await service.create_session("hello", idempotency_key="k")
        for number in range(1_001):
            await service.start_turn(first.session_id, "more", mode="queue", idempotency_key=f"k{number}")
        assert await service.create_session("hello", idempotency_key="k") == first
        assert (await service.read(first.session_id)).state.message_count == 2 * 1_002


@virtual
async def test_a_deleted_session_is_not_made_again(tmp_path: Path) -> None:
    """Its key is used up, and the error names the session."""
    async with open_runtime(store=tmp_path) as service:
        first = await service.create_session("hello", idempotency_key="k")
        bare = await service.create_session(None, idempotency_key="l")
        for session_id in (first.session_id, bare.session_id):
            await service.delete(session_id)
        for prompt, key, gone in (("hello", "k", first.session_id), (None, "l", bare.session_id)):
            with pytest.raises(SessionNotFoundError) as caught:
                await service.create_session(prompt, idempotency_key=key)
            assert caught.value.session_id == gone


@virtual
async def test_keys_of_sessions_that_ended_in_memory() -> None:
    """They are remembered for a while, and keys of sessions that live for as long as these do."""
    async with open_runtime() as service:
        stays = await service.create_session(None, idempotency_key="stays")
        for number in range(ENDED + 2):
            made = await service.create_session(None, idempotency_key=f"k{number}")
            await service.archive(made.session_id)
        assert await service.create_session(None, idempotency_key="stays") == stays
        with pytest.raises(SessionNotFoundError):
            await service.create_session(None, idempotency_key="k2")
        assert (await service.create_session(None, idempotency_key="k0")).session_id


@virtual
async def test_a_store_that_refuses_the_session(tmp_path: Path) -> None:
    """Nothing exists then, and the key is free."""
    faults = Faults(refuse=apsw.FullError("full"), refuse_kinds=(Commit,))
    async with open_runtime(store=tmp_path, faults=faults) as service:
        with pytest.raises(StoreError):
            await service.create_session("hello", idempotency_key="k")
        faults.refuse = None
        made = await service.create_session("bye", idempotency_key="k")
        assert await said(service, made.session_id) == ["bye"]


@virtual
async def test_two_processes_with_one_key(tmp_path: Path) -> None:
    """One creates the session; the other one finds it, and its result while the first still has the session."""
    async with open_runtime(store=tmp_path) as one, open_runtime(store=tmp_path) as two:
        first = await one.create_session("hello", idempotency_key="k")
        assert await two.create_session("hello", idempotency_key="k") == first
        assert await count(two) == 1


@virtual
async def test_a_store_that_closes_under_a_request(tmp_path: Path) -> None:
    """The request may be sent again under its key: the next process finds its session, or creates it."""
    async with open_runtime(store=tmp_path) as service:
        storage = storage_of(service)

    async def create() -> str:
        raise AssertionError("no key can be looked up")

    with pytest.raises(StoreError) as caught:
        await create_once(storage, DEFAULT_TENANT, creation_of("k", {}), create)
    assert (caught.value.cause, caught.value.retryable) == ("closed", True)
