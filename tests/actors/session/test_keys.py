"""Prompts under a key: each answer is the final one, which never changes, or says that the key may be sent again."""

from functools import partial
from pathlib import Path

import apsw
import pytest
import trio

from tests.actors.session.faulty import config
from tests.actors.session.inboxes import Slow, said
from tests.support.asking import Asked, ask
from tests.support.checks import names
from tests.support.compacting import Model, at_the_end, compacting, talk
from tests.support.crashing import actor_of, crash
from tests.support.faulty_store import Faults
from tests.support.models import FunctionModel, Puppet, says, stuck
from tests.support.runtime import new_session, open_runtime, storage_of
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, ProviderError, StoreError, WarrenError
from warren.calls.streams import EventReader
from warren.conversation.views import TurnResult
from warren.settings.config import Config, RetryPolicy
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time
FULL = apsw.FullError("the disk is full")


async def sent(service: Service, session_id: str, text: str = "x") -> TurnResult | WarrenError:
    """Send a prompt under its key; return the result or the error."""
    try:
        return await service.start_turn(session_id, text, mode="queue", idempotency_key=text)
    except WarrenError as exc:
        return exc


async def let_go(service: Service, session_id: str) -> None:
    """Wait until a session has left the memory of a process, which puts its lease back."""
    while actor_of(service, session_id) is not None:  # noqa: ASYNC110 - on a virtual clock
        await trio.sleep(1)


async def late(service: Service) -> None:
    """Let a process find that its leases ran out, as when it stood still for too long."""
    store = await storage_of(service).reader()
    me = store.behind.me  # type: ignore[attr-defined]
    clock, me.clock = me.clock, lambda: 0.0
    await store.renew()
    me.clock = clock


async def test_a_turn_of_another_process_is_the_answer(tmp_path: Path) -> None:
    """A process loses a session while a keyed prompt waits there, and gets it back: the caller has the one result."""
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path) as first,
        open_runtime(Slow(), store=tmp_path, config=config(idle_after=1)) as second,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(first)
        running = ask(nursery, first.start_turn, session_id, "running")
        await trio.sleep(1)
        waiting: Asked[TurnResult | WarrenError] = ask(nursery, sent, first, session_id)
        await trio.sleep(1)
        await late(first)
        there = await sent(second, session_id)
        assert isinstance(there, TurnResult)
        await let_go(second, session_id)
        await first.interrupt(session_id)
        assert (await running.failure(StoreError)).cause == "lease_lost"
        assert await waiting.value() == there
        assert await sent(first, session_id) == there
        assert await said(first, session_id) == ["x"]


async def test_a_prompt_that_could_not_be_stored_is_sent_again_under_its_key_alone(tmp_path: Path) -> None:
    """It waits on: its key finds it. Without a key the same prompt would run twice, so that error says no."""
    faults = Faults()
    async with open_runtime(Slow(), store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        keyed: Asked[TurnResult | WarrenError] = ask(nursery, sent, service, session_id)
        await trio.sleep(1)
        plain = ask(nursery, service.start_turn, session_id, "plain", mode="queue")
        await trio.sleep(1)
        faults.refuse, faults.refuse_kinds = FULL, (Commit,)
        refused, other = await keyed.value(), await plain.failure(StoreError)
        assert isinstance(refused, StoreError)
        assert (refused.cause, refused.retryable) == ("disk_full", True)
        assert (other.cause, other.retryable) == ("disk_full", False)
        faults.refuse = None
        assert isinstance(await sent(service, session_id), TurnResult)
        await trio.sleep(60)
        assert await said(service, session_id) == ["x", "plain"]


async def test_an_error_of_the_turn_is_final_under_its_key(store: Path | None) -> None:
    """The provider may answer later, and this key never gets another answer: the first caller hears that, too."""
    overloaded = ProviderError("try later", cause="overloaded", retryable=True)
    once = Config(retry=RetryPolicy(max_attempts=1))
    async with open_runtime(says(overloaded, ["fine"]), store=store, config=once) as service:
        session_id = await new_session(service)
        first, again = await sent(service, session_id), await sent(service, session_id)
        for each in (first, again):
            assert isinstance(each, ProviderError)
            assert (each.cause, each.retryable) == ("overloaded", False)
        assert isinstance(await sent(service, session_id, "y"), TurnResult)


async def test_a_prompt_that_a_compaction_has_stored_is_not_sent_again(tmp_path: Path) -> None:
    """The rest of its turn is refused: no turn takes the prompt any more, and the error says so from the first time.

    The turn is stored at its end alone.
    """
    model, faults = Model(), Faults()
    config = at_the_end()
    async with compacting(model, tmp_path, config=config, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        model.answer = Slow().complete
        first: Asked[TurnResult | WarrenError] = ask(nursery, sent, service, session_id)
        await trio.sleep(5)
        assert len(model.compactions) == 1
        faults.refuse, faults.refuse_kinds, faults.refusals = FULL, (Commit,), 1
        refused = await first.value()
        again = await sent(service, session_id)
        for each in (refused, again):
            assert isinstance(each, StoreError)
            assert not each.retryable


async def test_a_crashed_session_keeps_its_keys(tmp_path: Path) -> None:
    """Prompts that wait as their session crashes run all the same: a caller with a key is told to ask again."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "one")
        await trio.sleep(1)
        keyed: Asked[TurnResult | WarrenError] = ask(nursery, sent, service, session_id)
        await trio.sleep(1)
        plain = ask(nursery, service.start_turn, session_id, "plain", mode="queue")
        await trio.sleep(1)
        assert crash(service, session_id)
        crashed, other = await keyed.value(), await plain.failure(AgentError)
        assert isinstance(crashed, AgentError)
        assert (crashed.cause, crashed.retryable) == ("crash", True)
        assert (other.cause, other.retryable) == ("crash", False)
        assert isinstance(await sent(service, session_id), TurnResult)
        await trio.sleep(100)
        assert await said(service, session_id) == ["x", "plain"]


async def test_who_repeats_a_prompt_gets_the_events_of_its_turn() -> None:
    """From the first one on, at once: the turn may wait for long before its next event."""
    model = Puppet()
    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        start = partial(service.start_turn, session_id, "x", mode="queue", idempotency_key="x")
        nursery.start_soon(start)
        await model.reached(1)
        model.say("half")
        await trio.sleep(1)
        readers = list[EventReader]()
        again: Asked[TurnResult] = ask(nursery, partial(start, on_begin=readers.append))
        await trio.sleep(1)
        assert names(readers[0].take() or ()) == ["run_started", "turn_started", "text_delta"]
        model.say(None)
        await again.value()
        assert names(readers[0].take() or ())[-1] == "run_completed"
