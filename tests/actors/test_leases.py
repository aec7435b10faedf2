"""Two runtimes on one store: reads everywhere, turns where the lease is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import numbers
from tests.support.faulty_store import Faults
from tests.support.hanging import expire_leases, store_of, wake
from tests.support.models import FunctionModel, GatedModel, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.actors.supervision import ActorFailedError
from warren.base.errors import LeasedError, SessionNotFoundError, SessionNotRunningError, StoreError, WarrenError
from warren.conversation.events import RunCompleted, RunFailed
from warren.conversation.messages import AssistantMessage
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
SOON = Config(limits=Limits(idle_after=10))


@asynccontextmanager
async def busy(service: Service, model: GatedModel) -> AsyncIterator[str]:
    """Run a turn of a new session that ends with the body; gives the session's id."""
    async with trio.open_nursery() as nursery:
        session_id, before = await new_session(service), model.entered
        turn = ask(nursery, service.start_turn, session_id, "hello")
        while model.entered == before:
            await trio.testing.wait_all_tasks_blocked()
        try:
            yield session_id
        finally:
            model.gate.set()
        assert (await turn.value()).text == model.text


async def texts(service: Service, session_id: str) -> list[str]:
    """Return what the model said so far."""
    return [each.text for each in await transcript(service, session_id) if isinstance(each, AssistantMessage)]


async def test_turns_where_the_lease_is_reads_everywhere(tmp_path: Path) -> None:
    """The second runtime reads, lists and replays what the first one writes; its turn is refused, and says by whom."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        async with busy(gateway, model) as session_id:
            with pytest.raises(LeasedError) as caught:
                await command.start_turn(session_id, "me too")
        error = caught.value
        assert (error.cause, error.retryable, error.session_id) == ("leased", True, session_id)
        assert error.details["holder"] in error.message
        await gateway.start_turn(session_id, "go on")
        assert await texts(command, session_id) == ["done", "done"]
        assert (await command.read(session_id)).state.message_count == 4
        assert (await command.list()).sessions[0].message_count == 4
        assert await replay(command, session_id) == await replay(gateway, session_id)
        assert command.health().running_turns == 0


async def test_an_interrupt_says_where_the_turn_runs(tmp_path: Path) -> None:
    """An interrupt of a turn of another process is refused with the name of that process, not as if no turn ran."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        async with busy(gateway, model) as session_id:
            with pytest.raises(LeasedError) as caught:
                await command.interrupt(session_id)
        assert caught.value.details["holder"] in caught.value.message
        idle = await new_session(command)
        with pytest.raises(SessionNotRunningError):
            await command.interrupt(idle)
        with pytest.raises(SessionNotFoundError):
            await command.interrupt("01234567-89ab-7def-8123-456789abcdef")


async def test_a_reader_never_shows_what_is_out_of_date(tmp_path: Path) -> None:
    """A session that is live here to be watched shows what another process has added since."""
    async with (
        open_runtime(says(["one"], ["two"]), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        async with command.subscribe(session_id):
            await command.resume(session_id)
            await gateway.start_turn(session_id, "go on")
            assert (await command.read(session_id)).state.message_count == 4
            assert (await command.resume(session_id)).state.message_count == 4
            assert [row.message_count for row in (await command.list()).sessions] == [4]


async def test_the_lease_goes_with_the_idle_session(tmp_path: Path) -> None:
    """The second runtime goes on with a session that is idle in the first, and the first one goes on after that."""
    async with (
        open_runtime(says(["one"], ["three"]), store=tmp_path, config=SOON) as gateway,
        open_runtime(says(["two"]), store=tmp_path, config=SOON) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        assert (await command.start_turn(session_id, "go on")).text == "two"
        assert (await gateway.start_turn(session_id, "go on")).text == "three"
        assert await texts(command, session_id) == ["one", "two", "three"]
        seqs = numbers(await replay(gateway, session_id))
        assert seqs == list(range(1, len(seqs) + 1))


async def test_a_watcher_sees_what_another_process_did_in_between(tmp_path: Path) -> None:
    """When the session comes back here, an open subscription first gets what was added elsewhere."""
    async with (
        open_runtime(says(["one"], ["three"]), store=tmp_path, config=SOON) as gateway,
        open_runtime(says(["two"]), store=tmp_path, config=SOON) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        async with gateway.subscribe(session_id, after_seq=0) as events:
            await trio.sleep(11)
            await command.start_turn(session_id, "go on")
            await trio.sleep(11)
            await gateway.start_turn(session_id, "go on")
            seen, results = [], list[str]()
            async for envelope in events:
                seen.append(envelope)
                results += [envelope.event.result] if isinstance(envelope.event, RunCompleted) else []
                if len(results) == 3:
                    break
        assert results == ["one", "two", "three"]
        assert seen == await replay(gateway, session_id)


async def test_ending_in_order_frees_everything(tmp_path: Path) -> None:
    """After a shutdown the next process goes on at once, with the next numbers."""
    async with open_runtime(says(["one"]), store=tmp_path) as gateway:
        session_id = (await gateway.create_session("hello")).session_id
    async with open_runtime(says(["two"]), store=tmp_path) as command:
        await command.start_turn(session_id, "go on")
        seqs = numbers(await replay(command, session_id))
        assert seqs == list(range(1, len(seqs) + 1))


async def test_a_stale_owner_cannot_write(tmp_path: Path) -> None:
    """A runtime that hung during a turn finds its session taken over: its turn is refused, the other's stands."""
    async with (
        open_runtime(FunctionModel(stuck), store=tmp_path) as gateway,
        open_runtime(says(["mine now"]), store=tmp_path) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        turn = ask(nursery, gateway.start_turn, session_id, "think")
        await trio.testing.wait_all_tasks_blocked()
        await expire_leases(gateway)
        assert (await command.start_turn(session_id, "go on")).text == "mine now"
        await gateway.interrupt(session_id)
        error = await turn.failure(StoreError)
        assert error.cause == "lease_lost"
        assert error.details["text"] == "half an answer"
        assert await texts(gateway, session_id) == await texts(command, session_id) == ["mine now"]
        stored = await replay(command, session_id)
        assert [type(each.event) for each in stored][-1] is RunCompleted
        assert not [each for each in stored if isinstance(each.event, RunFailed)]


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_nobody_retires_what_runs_elsewhere(tmp_path: Path, how: str) -> None:
    """A session that runs a turn in another process is not archived or deleted under its hands; afterwards it is."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(["one"]), store=tmp_path) as command,
    ):
        async with busy(gateway, model) as session_id:
            with pytest.raises(LeasedError):
                await getattr(command, how)(session_id)
        await getattr(command, how)(session_id)
        for service in (command, gateway):
            with pytest.raises(SessionNotFoundError):
                await service.start_turn(session_id, "go on")


async def test_what_was_retired_elsewhere_is_not_started_here(tmp_path: Path) -> None:
    """A session that left memory here and was archived by another process is retired here too."""
    async with (
        open_runtime(says(["one"]), store=tmp_path, config=SOON) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        await trio.sleep(11)
        await command.archive(session_id)
        with pytest.raises(SessionNotFoundError):
            await gateway.start_turn(session_id, "go on")
        assert (await gateway.list()).sessions == ()


async def test_leases_are_renewed(tmp_path: Path) -> None:
    """A runtime keeps what it has for longer than a lease, as long as it runs."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        for service in (gateway, command):
            (await store_of(service)).me.clock = trio.current_time
        async with busy(gateway, model) as session_id:
            await trio.sleep(50)
            with pytest.raises(LeasedError):
                await command.start_turn(session_id, "go on")


async def test_an_interrupt_during_the_claim_frees_the_session(tmp_path: Path) -> None:
    """A turn that is refused for the lease leaves nobody waiting, also who interrupts it meanwhile."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
        busy(gateway, model) as session_id,
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, command.start_turn, session_id, "go on")
        await trio.lowlevel.checkpoint()
        interrupt = ask(nursery, command.interrupt, session_id)
        await turn.failure(LeasedError)
        with trio.fail_after(1):
            await interrupt.ended.wait()
        assert command.health().running_turns == 0
        with pytest.raises(LeasedError):
            await command.start_turn(session_id, "go on")


# -- who slept, and what was taken away meanwhile


async def test_who_lapsed_once_is_alive_again(tmp_path: Path) -> None:
    """Awake, a runtime keeps its sessions again, also where another process came while it slept."""
    async with open_runtime(GatedModel(), store=tmp_path) as gateway, trio.open_nursery() as nursery:
        session_id = await new_session(gateway)
        await expire_leases(gateway)
        async with open_runtime(says(["x"]), store=tmp_path) as visitor:
            await visitor.create_session("something else")
        await wake(gateway)
        ask(nursery, gateway.start_turn, session_id, "think")
        await trio.sleep(3600)
        async with open_runtime(says(), store=tmp_path) as thief:
            with pytest.raises(LeasedError):
                await thief.start_turn(session_id, "mine")
        await gateway.interrupt(session_id)


async def test_a_lock_that_was_tidied_away_is_made_anew(tmp_path: Path) -> None:
    """A runtime that lives keeps its sessions, whatever becomes of the files that say so."""
    async with open_runtime(model := GatedModel(), store=tmp_path) as gateway, busy(gateway, model) as session_id:
        for lock in (tmp_path / "holders").iterdir():
            lock.unlink()
        await trio.sleep(30)
        async with open_runtime(says(), store=tmp_path) as thief:
            with pytest.raises(LeasedError):
                await thief.start_turn(session_id, "mine")


async def test_who_wakes_up_does_not_act_on_the_past(tmp_path: Path) -> None:
    """After a take-over the former owner shows what is stored, and calls no model on what it remembers."""
    model = GatedModel()
    model.gate.set()
    async with (
        open_runtime(model, store=tmp_path) as gateway,
        open_runtime(says(["theirs"]), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        await expire_leases(gateway)
        await command.start_turn(session_id, "go on")
        await wake(gateway)
        assert (await gateway.read(session_id)).state.message_count == 4
        assert [row.message_count for row in (await gateway.list()).sessions] == [4]
        assert model.entered == 1
        assert (await gateway.start_turn(session_id, "go on")).text == "done"
        assert await texts(command, session_id) == ["done", "theirs", "done"]


async def test_a_turn_is_told_to_be_lost_only_if_it_is(tmp_path: Path) -> None:
    """A subscriber hears of the end of a turn whose process hangs; the process wakes up too late to store it.

    If it could, the numbers of its events would be below those that the subscriber waits for.
    """
    shown, model = Recorder(), GatedModel()
    async with (
        open_runtime(model, store=tmp_path) as gateway,
        open_runtime(says(["later"]), store=tmp_path) as command,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(gateway)
        turn = ask(nursery, gateway.start_turn, session_id, "think", on_event=shown)
        await trio.testing.wait_all_tasks_blocked()
        await expire_leases(gateway)
        async with command.subscribe(session_id, after_seq=shown.envelopes[-1].seq) as events:
            told = await anext(events)
            assert isinstance(told.event, RunFailed)
            await wake(gateway)
            model.gate.set()
            assert (await turn.failure(StoreError)).cause == "lease_lost"
            assert (await command.start_turn(session_id, "go on")).text == "later"
            stored = await replay(command, session_id)
            with trio.fail_after(1):
                assert [await anext(events) for _ in stored] == stored


@pytest.mark.parametrize("after_seq", [0, None])
async def test_watching_where_the_lease_is_not(tmp_path: Path, after_seq: int | None) -> None:
    """A subscription here gets what was added elsewhere as soon as the session comes here: no gap, no double."""
    async with (
        open_runtime(says(["one"], ["two"]), store=tmp_path, config=SOON) as gateway,
        open_runtime(says(["three"]), store=tmp_path, config=SOON) as command,
        command.subscribe((await gateway.create_session("hello")).session_id, after_seq=after_seq) as events,
    ):
        session_id = (await gateway.list()).sessions[0].session_id
        before = (await replay(gateway, session_id))[-1].seq if after_seq is None else after_seq
        await gateway.start_turn(session_id, "more")
        await trio.sleep(20)
        await command.start_turn(session_id, "mine")
        stored = await replay(command, session_id, after_seq=before)
        with trio.fail_after(1):
            assert [await anext(events) for _ in stored] == stored
        assert numbers(stored) == list(range(before + 1, stored[-1].seq + 1))


async def test_what_was_archived_while_its_owner_slept_stays_so(tmp_path: Path) -> None:
    """An owner that wakes up neither goes on with the session nor shows it as open."""
    async with (
        open_runtime(says(["one"], ["two"]), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        await expire_leases(gateway)
        await command.archive(session_id)
        with pytest.raises(StoreError):
            await gateway.start_turn(session_id, "go on")
        with pytest.raises(SessionNotFoundError):
            await gateway.start_turn(session_id, "go on")
        assert (await command.read(session_id)).state.message_count == 2


async def test_looking_is_not_refused_with_a_turn(tmp_path: Path) -> None:
    """A caller that resumes or watches at the moment when another's turn is refused is served."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
        busy(gateway, model) as session_id,
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, command.start_turn, session_id, "go on")
        await trio.lowlevel.checkpoint()
        look = ask(nursery, command.resume, session_id)
        await turn.failure(LeasedError)
        assert (await look.value()).state.message_count == 0


# -- what processes do for one another


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_a_stream_follows_a_session_to_its_end_elsewhere(tmp_path: Path, how: str) -> None:
    """A subscription here shows each turn there within a second, and ends with the session."""
    async with (
        open_runtime(says(["one"], ["two"], ["three"]), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        seen = await replay(command, session_id)
        async with command.subscribe(session_id) as events:
            for _ in range(2):
                await gateway.start_turn(session_id, "go on")
                stored = await replay(gateway, session_id)
                with trio.fail_after(1):
                    seen += [await anext(events) for _ in stored[len(seen) :]]
                assert seen == stored
            await getattr(gateway, how)(session_id)
            with trio.fail_after(1):
                assert [each async for each in events] == []


async def test_whoever_hangs_hands_nothing_over(tmp_path: Path) -> None:
    """A process that does not answer keeps an idle session until its lease ends, and nobody waits for long."""
    faults = Faults()
    async with (
        open_runtime(says(["one"]), store=tmp_path, faults=faults) as gateway,
        open_runtime(says(["two"]), store=tmp_path) as command,
    ):
        session_id = (await gateway.create_session("hello")).session_id
        faults.gate = trio.Event()  # nothing that it would write reaches the store
        with trio.fail_after(3), pytest.raises(LeasedError):
            await command.start_turn(session_id, "go on")
        faults.gate.set()
        assert (await command.start_turn(session_id, "go on")).text == "two"


async def test_a_session_with_waiting_input_is_not_taken_away(tmp_path: Path) -> None:
    """An input that waits here for its turn keeps the session here; the other process is told who has it."""
    async with (
        open_runtime(model := GatedModel(), store=tmp_path) as gateway,
        open_runtime(says(), store=tmp_path) as command,
        busy(gateway, model) as session_id,
        trio.open_nursery() as nursery,
    ):
        queued = ask(nursery, partial(gateway.start_turn, session_id, "next", mode="queue"))
        await trio.testing.wait_all_tasks_blocked()
        for mode in ("busy", "queue", "steer"):
            with pytest.raises(LeasedError):
                await command.start_turn(session_id, "mine", mode=mode)
        model.gate.set()
        assert (await queued.value()).text == "done"


async def test_a_stream_ends_where_the_session_was_deleted_elsewhere(tmp_path: Path) -> None:
    """As soon as this process knows that the session is gone, who watches it is told by the end of the stream."""
    async with open_runtime(says(), store=tmp_path) as command:
        async with open_runtime(says(["one"]), store=tmp_path) as gateway:
            session_id = (await gateway.create_session("hello")).session_id
        async with command.subscribe(session_id) as events:
            async with open_runtime(store=tmp_path) as other:
                await other.delete(session_id)
            with pytest.raises(SessionNotFoundError):
                await command.start_turn(session_id, "go on")
            with trio.fail_after(1):
                assert [each async for each in events] == []


async def test_a_host_that_opens_the_store_again_has_its_sessions(tmp_path: Path) -> None:
    """If the storage actor gave up, the next runtime of the same process need not wait for the lease to end."""
    ids, faults = list[str](), Faults()

    async def give_up() -> None:
        async with open_runtime(says(["one"]), store=tmp_path, faults=faults) as one:
            ids.append((await one.create_session("hello")).session_id)
            faults.crash_before = 100
            for _ in range(20):
                with suppress(WarrenError):
                    await new_session(one)
            await trio.sleep(10)

    with pytest.raises(ActorFailedError):
        await give_up()
    async with open_runtime(says(["two"]), store=tmp_path) as two:
        assert (await two.start_turn(ids[0], "go on")).text == "two"
