"""Inputs to a session while things go wrong in it: each sender is answered, nothing is lost, nothing doubled."""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.actors.session.faulty import config
from tests.actors.session.inboxes import Slow, rest, said
from tests.support.asking import ask
from tests.support.compacting import Model, compacting, talk
from tests.support.crashing import actor_of
from tests.support.faulty_store import Faults
from tests.support.hanging import expire_leases, store_of
from tests.support.models import GatedModel
from tests.support.runtime import Recorder, new_session, open_runtime, storage_of
from warren.actors.calls.service import Service
from warren.actors.protocol import Withdraw
from warren.actors.supervisor.scheduler import BACKOFF
from warren.base.errors import AgentError, InvalidParamsError, LeasedError, StoreError
from warren.conversation.events import Envelope, RunCompleted, RunStarted
from warren.conversation.options import TurnMode
from warren.conversation.peers import Peer
from warren.mailbox import Mail
from warren.storage.operations import Archive, Commit, EndInputs
from warren.storage.sqlite import Holder
from warren.storage.sqlite.file import FILE_NAME

pytestmark = pytest.mark.virtual_time
FULL = apsw.FullError("the disk is full")


async def test_a_sender_hears_the_turn_of_a_session_that_slept(tmp_path: Path) -> None:
    """Its events and its tools are the turn's, also where the session came back from the store to take the prompt."""
    recorder = Recorder()
    async with open_runtime(Slow(), store=tmp_path, config=config(idle_after=5)) as service:
        session_id = await new_session(service)
        await trio.sleep(10)
        assert actor_of(service, session_id) is None
        await service.start_turn(session_id, "call", mode="queue", on_event=recorder, extra_tools=[rest])
        assert recorder.only(RunStarted)
        assert await said(service, session_id) == ["call"]
        assert "rested" in str(await service.history(session_id))


async def test_a_prompt_that_was_stored_before_a_crash(tmp_path: Path) -> None:
    """The storage actor crashed after it: it is found in the file, its session hears of it, its sender of its turn."""
    faults = Faults()
    async with open_runtime(Slow(), store=tmp_path, faults=faults, config=config(idle_after=1e9)) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "one")
        faults.crash_after = 1
        assert (await service.start_turn(session_id, "two", mode="queue")).steps == 1
        assert await said(service, session_id) == ["one", "two"]
        faults.crash_before = 1
        with pytest.raises(StoreError) as caught:
            await service.start_turn(session_id, "three", mode="queue")
        assert caught.value.cause == "crash"
        assert (await service.start_turn(session_id, "four", mode="queue")).steps == 1
        assert await said(service, session_id) == ["one", "two", "four"]


async def test_a_withdrawal_that_was_stored_before_a_crash(tmp_path: Path) -> None:
    """The storage actor crashed after it: the prompt has ended, and both who wait hear so; else it waits on."""
    faults, far = Faults(), datetime.now(UTC) + timedelta(days=9)
    async with (
        open_runtime(Slow(), store=tmp_path, faults=faults, config=config(idle_after=1e9)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        asked = ask(nursery, partial(service.start_turn, not_before=far), session_id, "one", mode="queue")
        await trio.sleep(1)
        (prompt,) = await service.inputs(session_id)
        faults.crash_before = 1
        with pytest.raises(StoreError) as caught:
            await service.withdraw(session_id, prompt.input_id)
        assert caught.value.cause == "crash"
        faults.crash_after = 1
        await service.withdraw(session_id, prompt.input_id)
        with trio.fail_after(1):
            assert (await asked.failure(AgentError)).cause == "cancelled"
        assert await service.inputs(session_id) == ()


async def test_inputs_of_a_session_that_another_process_has(tmp_path: Path) -> None:
    """A process that has lost it unknowingly, as a clock was put forward, ends none of them."""
    far = datetime.now(UTC) + timedelta(days=9)
    async with (
        open_runtime(Slow(), store=tmp_path, config=config(idle_after=1e9)) as service,
        open_runtime(Slow(), store=tmp_path, config=config(idle_after=1e9)) as other,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, not_before=far), session_id, "one", mode="queue")
        await trio.sleep(1)
        (prompt,) = await service.inputs(session_id)
        await expire_leases(service)
        await other.start_turn(session_id, "two")
        (await store_of(service)).me.clock = lambda: time.time() + 3600  # for it the other process is dead
        with pytest.raises(StoreError) as caught:
            await service.withdraw(session_id, prompt.input_id)
        assert caught.value.cause == "lease_lost"
        assert await other.inputs(session_id) == (prompt,)
        nursery.cancel_scope.cancel()


async def test_what_waited_behind_an_archive_that_failed(tmp_path: Path) -> None:
    """The session lives on where the store refuses to retire it, and so does what was said to it."""
    faults, model = Faults(), GatedModel()
    async with (
        open_runtime(model, store=tmp_path, faults=faults, config=config(idle_after=1e9)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "one")
        await trio.sleep(1)
        queued = ask(nursery, service.start_turn, session_id, "two", mode="queue")
        await trio.sleep(1)
        faults.refuse, faults.refuse_kinds = FULL, (Archive,)
        archived = ask(nursery, service.archive, session_id)
        await trio.sleep(1)
        model.gate.set()
        await trio.sleep(1)
        assert isinstance(archived.error, StoreError)
        assert queued.ended.is_set()
        assert queued.error is None
        assert await said(service, session_id) == ["one", "two"]


@pytest.mark.parametrize("idle_after", [1.0, 600.0])
async def test_what_waits_behind_a_turn_that_could_not_be_stored(tmp_path: Path, idle_after: float) -> None:
    """All who wait hear it at once, and no live session counts as gone; the prompts run by themselves in a minute."""
    faults = Faults()
    async with (
        open_runtime(Slow(), store=tmp_path, faults=faults, config=config(idle_after=idle_after)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        asked = []
        for text in ("one", "two"):
            asked.append(ask(nursery, service.start_turn, session_id, text, mode="queue"))
            await trio.sleep(1)
        faults.refuse, faults.refuse_kinds, faults.refusals = FULL, (Commit,), 1
        assert {(await each.failure(StoreError)).cause for each in asked} == {"disk_full"}
        assert len(await service.inputs(session_id)) == 2
        await trio.sleep(BACKOFF.first - 15)
        assert await said(service, session_id) == []
        await trio.sleep(60)
        assert await said(service, session_id) == ["one", "two"]


async def test_a_full_mailbox_loses_nothing(tmp_path: Path) -> None:
    """An input that the store has taken in reaches the session, however much else is asked of it in that moment."""
    async with (
        open_runtime(Slow(), store=tmp_path, config=config(mailbox=1)) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        asked = [ask(nursery, service.start_turn, session_id, f"p{n}", mode="queue") for n in range(4)]
        await trio.sleep(100)
        assert [each.error for each in asked] == [None] * 4
        assert sorted(await said(service, session_id)) == ["p0", "p1", "p2", "p3"]


async def test_an_input_is_withdrawn_as_its_turn_is_due(tmp_path: Path) -> None:
    """Withdrawn in the instant in which the turn before it ends, it either runs or is gone; the session lives."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        def take_back(envelope: Envelope) -> None:
            actor = actor_of(service, session_id)
            if isinstance(envelope.event, RunCompleted) and actor is not None:
                taking_back.append(actor.mailbox.post(Withdraw(waiting.input_id)))

        taking_back: list[Mail[int]] = []
        first = ask(nursery, service.start_turn, session_id, "first", on_event=take_back)
        await trio.sleep(1)
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        await trio.sleep(1)
        (waiting,) = await service.inputs(session_id)
        await first.value()
        await second.ended.wait()
        assert (await service.start_turn(session_id, "third", mode="queue")).text == "re: third"
        ran = "second" in await said(service, session_id)
        assert len(taking_back) == 1
        assert ran is (second.error is None)


def expire_lease(service: Service, folder: Path, session_id: str, *, taken: bool) -> None:
    """Have the process count as late to renew; somebody else may have the session then."""
    storage_of(service).fence.lapses += 1  # as a process finds it that slept
    if taken:
        db = apsw.Connection(str(folder / FILE_NAME))
        holder = Holder(folder / "holders", "somebody else", 3600.0)
        with db:
            holder.register(db)
            db.execute(
                "UPDATE sessions SET holder = ?, epoch = epoch + 1 WHERE session_id = ?", (holder.key, session_id)
            )
        db.close()


@pytest.mark.parametrize("how", ["interrupt", "delete"])
async def test_a_turn_is_ended_as_it_is_due(tmp_path: Path, how: str) -> None:
    """Interrupted or deleted in the instant in which it was claimed for what waited, the session does not run on."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        await first.ended.wait()
        began = trio.current_time()
        await getattr(service, how)(session_id)
        await second.ended.wait()
        assert trio.current_time() - began < 5
        assert second.error is not None


@pytest.mark.parametrize("wrong", ["refused", "gone"])
async def test_withdrawing_is_whole(tmp_path: Path, wrong: str) -> None:
    """If the store refuses, the input waits on; where the caller goes away, it is gone in the store as well."""
    faults = Faults()
    async with open_runtime(Slow(), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        await service.inject_context(session_id, "it rains")
        (waiting,) = await service.inputs(session_id)
        if wrong == "refused":
            faults.refuse, faults.refuse_kinds = FULL, (EndInputs,)
            with pytest.raises(StoreError):
                await service.withdraw(session_id, waiting.input_id)
            faults.refuse = None
        else:
            with trio.CancelScope() as scope:
                scope.cancel()
                await service.withdraw(session_id, waiting.input_id)
            await trio.testing.wait_all_tasks_blocked()
        left = [each.text for each in await service.inputs(session_id)]
        assert left == (["it rains"] if wrong == "refused" else [])
        await service.start_turn(session_id, "go out?")
        assert await said(service, session_id) == [*left, "go out?"]


async def test_a_sender_whose_session_was_taken_is_told(tmp_path: Path) -> None:
    """The lease lapses while prompts wait, and another process has the session then, in which they run.

    Only a sender with a key is told to try again: it would find its prompt.
    """
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        third = ask(nursery, service.start_turn, session_id, "third", mode="queue", idempotency_key="k")
        await trio.sleep(1)
        expire_lease(service, tmp_path, session_id, taken=True)
        await first.failure(StoreError)
        await trio.sleep(10)
        assert (await second.failure(AgentError)).cause == "outcome_unknown"
        await third.failure(LeasedError)


async def test_a_prompt_runs_after_a_lapse(tmp_path: Path) -> None:
    """The process was late to renew its leases while a prompt waited: it asks for them again and runs it."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        await trio.sleep(1)
        expire_lease(service, tmp_path, session_id, taken=False)
        await first.value()
        await trio.sleep(15)
        assert (await second.value()).text == "re: second"


async def test_a_name_is_asked_for_twice_at_once(store: Path | None) -> None:
    """Of two sessions that are created together with one name, one has it; the other is told which field is wrong."""
    async with open_runtime(Slow(), store=store) as service, trio.open_nursery() as nursery:
        asked = [ask(nursery, service.create_session, None, peer=Peer("ann")) for _ in range(2)]
        for each in asked:
            await each.ended.wait()
        (error,) = [each.error for each in asked if each.error is not None]
        assert isinstance(error, InvalidParamsError)
        assert error.path == "$.peer.name"


async def test_a_retry_waits_for_the_turn_that_took_the_first(tmp_path: Path) -> None:
    """A compaction has stored that a turn took a prompt: whoever sends it again gets that turn's result."""
    model = Model()
    async with compacting(model, tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        model.answer = Slow().complete
        first = ask(nursery, service.start_turn, session_id, "x", mode="steer", idempotency_key="k")
        await trio.sleep(5)
        assert len(model.compactions) == 1
        again = await service.start_turn(session_id, "x", mode="steer", idempotency_key="k")
        assert again == await first.value()
        assert (await said(service, session_id)).count("x") == 1


@pytest.mark.parametrize("crashes", [1, 2, 3])
async def test_a_prompt_runs_though_storage_crashes(tmp_path: Path, crashes: int) -> None:
    """A turn before it cannot be stored, again and again: what is queued behind it runs all the same, once."""
    faults = Faults()
    async with open_runtime(Slow(), store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        await trio.sleep(1)
        faults.crash_before = crashes
        await first.failure(StoreError)
        await trio.sleep(100)
        assert second.ended.is_set()
        assert (await said(service, session_id)).count("second") in ([1] if second.error is None else [0, 1])


async def test_an_input_is_withdrawn_before_its_session_knows_it(tmp_path: Path) -> None:
    """It is stored and listed, and not confirmed yet: whoever sees it can take it back, and its sender is told so."""
    faults = Faults()
    async with open_runtime(Slow(), store=tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "first")
        await trio.sleep(1)
        faults.delay_after = 2
        second = ask(nursery, service.start_turn, session_id, "second", mode="queue")
        await trio.sleep(1)
        (waiting,) = await service.inputs(session_id)
        await service.withdraw(session_id, waiting.input_id)
        assert await service.inputs(session_id) == ()
        assert (await second.failure(AgentError)).cause == "cancelled"
        await first.value()
        await trio.sleep(60)
        assert await said(service, session_id) == ["first"]


@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_what_a_turn_has_taken_is_not_listed(store: Path | None, mode: TurnMode) -> None:
    """A list shows what can be taken back: not what a turn that still runs has taken."""
    async with open_runtime(Slow(), store=store, tools=[rest]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "call", mode="queue")
        await trio.sleep(5)
        assert await service.inputs(session_id) == ()
        second = ask(nursery, service.start_turn, session_id, "more", mode=mode)
        await trio.sleep(1)
        assert [each.text for each in await service.inputs(session_id)] == ["more"]
        await trio.sleep(16)
        assert [each.text for each in await service.inputs(session_id)] == ([] if mode == "steer" else ["more"])
        await first.value()
        await second.value()


async def test_a_damaged_input_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is passed over with a word in the log; what waits behind it runs, and the session goes on."""
    model = Slow()
    async with open_runtime(model, store=tmp_path) as service:
        session_id = await new_session(service)
        for text in ("one", "two"):
            await service.inject_context(session_id, text)
    db = apsw.Connection(str(tmp_path / FILE_NAME))
    db.execute("UPDATE inbox SET body = substr(body, 2) WHERE number = 1")
    db.close()
    async with open_runtime(model, store=tmp_path) as service:
        assert (await service.start_turn(session_id, "hello")).text == "re: hello"
        assert await said(service, session_id) == ["two", "hello"]
        assert await service.inputs(session_id) == ()
    assert f"an input of session {session_id} is damaged in the store" in caplog.text
