"""Limits of tenants and tokens in a runtime: what is refused and when, and that tenants do not wait for each other."""

import contextlib
import gc
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.compacting import settings, talk
from tests.support.memories import memory_in, recalling_model
from tests.support.models import USAGE, Emit, FunctionModel, GatedModel, reply, says
from tests.support.runtime import Recorder, memory_of, open_runtime, replay, supervisor_of
from warren.actors.calls.service import Service
from warren.actors.limits.tenancy import Account
from warren.base.errors import (
    CapacityExceededError,
    InvalidParamsError,
    PermissionDeniedError,
    SessionNotFoundError,
    WarrenError,
)
from warren.base.principals import SCOPES, Principal
from warren.base.tenant_limits import TenantLimits, TokenLimits
from warren.compaction import CompactionConfig
from warren.conversation.attachments import File, Kind
from warren.conversation.events import RunFailed
from warren.conversation.messages import ToolUseBlock, UserMessage
from warren.conversation.peers import Peer
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits
from warren.storage.queries import StoredBytes
from warren.transport.access.logins import Login

pytestmark = pytest.mark.virtual_time

ACME, OTHER = Principal("acme", "ann"), Principal("other", "bob")
SECONDS = 10


async def slowly(_request: ModelRequest, _emit: Emit) -> ModelReply:
    """Answer after ten seconds."""
    await trio.sleep(SECONDS)
    return reply("done")


@attrs.frozen
class Reader(FunctionModel):
    """A model that takes texts as files."""

    kinds: frozenset[Kind] = frozenset({"text"})


def limited(**limits: int) -> Config:
    """Return settings with limits of one tenant."""
    return Config(tenants={"acme": TenantLimits(**limits)})


async def refusal(call: Awaitable[Any]) -> tuple[str | None, float | None, bool]:
    """Return the cause of a refusal, the seconds to wait, and whether waiting helps."""
    with pytest.raises(CapacityExceededError) as caught:
        await call
    assert caught.value.numbers.http == 429
    return caught.value.cause, caught.value.details["retry_after"], caught.value.retryable


async def sessions(service: Service, count: int) -> list[str]:
    """Create sessions."""
    return [(await service.create_session(None)).session_id for _ in range(count)]


async def tomorrow(service: Service) -> None:
    """Let the next day begin for the limits."""
    supervisor_of(service).shared.limiter.tenancy.clock = lambda: time.time() + 86_400
    await trio.sleep(3)


async def ended(outcomes: list[str], name: str, call: Awaitable[Any]) -> None:
    """Note the name of a call when it ends."""
    await call
    outcomes.append(name)


async def test_tenants_take_turns(tmp_path: Path) -> None:
    """However many turns of one tenant wait for room, one of another waits for the one that runs and one more."""
    config = Config(limits=Limits(max_sessions=1))
    async with open_runtime(FunctionModel(slowly), store=tmp_path, config=config) as runtime:
        acme, other = runtime.as_(ACME), runtime.as_(OTHER)
        flood, own = await sessions(acme, 30), await sessions(other, 2)
        order: list[str] = []
        async with trio.open_nursery() as nursery:
            for each in flood:
                nursery.start_soon(ended, order, "acme", acme.start_turn(each, "hi", mode="queue"))
            await trio.testing.wait_all_tasks_blocked()
            for each in own:
                nursery.start_soon(ended, order, "other", other.start_turn(each, "hi", mode="queue"))
            await trio.sleep(5 * SECONDS + 1)
            assert order == ["acme", "acme", "other", "acme", "other"]
            nursery.cancel_scope.cancel()


async def test_work_of_a_dead_process_is_shared_out(tmp_path: Path) -> None:
    """Inputs of many sessions of one tenant, left by a process, hold up those of another tenant by a turn each."""
    config = Config(limits=Limits(max_sessions=1))
    async with open_runtime(FunctionModel(slowly), store=tmp_path, config=config) as runtime:
        for principal, count in ((ACME, 10), (OTHER, 1)):
            service = runtime.as_(principal)
            for session_id in await sessions(service, count):
                with trio.move_on_after(0.01):
                    await service.start_turn(session_id, principal.tenant, mode="queue")
    order: list[str] = []

    async def note(request: ModelRequest, _emit: Emit) -> ModelReply:
        prompts = [each.content for each in request.messages if isinstance(each, UserMessage)]
        order.append(prompts[-1])
        await trio.sleep(SECONDS)
        return reply("done")

    async with open_runtime(FunctionModel(note), store=tmp_path, config=config):
        await trio.sleep(30 * SECONDS)
    assert sorted(order) == ["acme"] * 10 + ["other"]  # one of them was running, and goes on
    assert "other" in order[:3]


async def test_turns_a_minute() -> None:
    """A quiet minute's turns may begin at once; the next one may after exactly the time that the refusal names."""
    async with open_runtime(config=limited(turns_per_minute=3)) as runtime:
        acme = runtime.as_(ACME)
        (session_id,) = await sessions(acme, 1)
        for _ in range(3):
            await acme.start_turn(session_id, "hi")
        for mode in ("busy", "queue"):
            cause, wait, retryable = await refusal(acme.start_turn(session_id, "hi", mode=mode))
            assert (cause, retryable) == ("tenant_turns_per_minute", True)
            assert wait == pytest.approx(20)
        await trio.sleep(19.9)
        assert (await refusal(acme.start_turn(session_id, "hi")))[1] == pytest.approx(0.1)
        await trio.sleep(0.1)
        await acme.start_turn(session_id, "hi", mode="queue")
        await runtime.start_turn((await sessions(runtime, 1))[0], "another tenant's")
        await trio.sleep(600)
        for _ in range(3):
            await acme.start_turn(session_id, "hi")
        assert (await refusal(acme.create_session("hi")))[0] == "tenant_turns_per_minute"
        assert len((await acme.list()).sessions) == 1


@pytest.mark.parametrize("mode", ["busy", "queue"])
async def test_running_turns(mode: Any, tmp_path: Path) -> None:
    """Those that wait for room count; one more is refused at once, and may begin when one has ended or was given up."""
    config = attrs.evolve(limited(running_turns=2), limits=Limits(max_sessions=3))
    async with open_runtime(FunctionModel(slowly), store=tmp_path, config=config) as runtime:
        acme, other = runtime.as_(ACME), runtime.as_(OTHER)
        ids, others = await sessions(acme, 3), await sessions(other, 3)
        async with trio.open_nursery() as nursery:
            for each in ids[:2]:
                nursery.start_soon(ended, [], "", acme.start_turn(each, "hi", mode=mode))
            await trio.sleep(1)
            for again in ("busy", "queue"):
                assert await refusal(acme.start_turn(ids[2], "hi", mode=again)) == ("tenant_running_turns", 1, True)
            await acme.inject_context(ids[2], "text that begins no turn")
            await trio.sleep(SECONDS)
            for each in others:
                nursery.start_soon(ended, [], "", other.start_turn(each, "hi"))
            await trio.testing.wait_all_tasks_blocked()
            for each in ids[:2]:  # they wait for room that the other tenant has
                nursery.start_soon(ended, [], "", acme.start_turn(each, "hi", mode="queue"))
            await trio.testing.wait_all_tasks_blocked()
            assert runtime.statistics().waiting_sessions == 2
            assert (await refusal(acme.start_turn(ids[2], "hi", mode="queue")))[0] == "tenant_running_turns"
        await acme.start_turn(ids[2], "hi")


async def test_a_crash_gives_its_place_back(tmp_path: Path) -> None:
    """A turn that fails, is interrupted or whose session is deleted counts no longer."""
    async with open_runtime(FunctionModel(slowly), store=tmp_path, config=limited(running_turns=1)) as runtime:
        acme = runtime.as_(ACME)
        for end in (acme.interrupt, acme.delete):
            (session_id,) = await sessions(acme, 1)
            async with trio.open_nursery() as nursery:

                async def run(session_id: str = session_id) -> None:
                    with pytest.raises(WarrenError):
                        await acme.start_turn(session_id, "hi")

                nursery.start_soon(run)
                await trio.sleep(1)
                assert (await refusal(acme.create_session("hi")))[0] == "tenant_running_turns"
                await end(session_id)
        assert (await acme.create_session("hi")).text == "done"


@pytest.mark.parametrize("stored", [True, False])
async def test_sessions(tmp_path: Path, *, stored: bool) -> None:
    """Of many that are created at once exactly so many are; those that end make room, and a restart counts them."""
    config, store = limited(sessions=3), tmp_path if stored else None
    refused: list[str | None] = []

    async def create(service: Service) -> None:
        try:
            await service.create_session(None)
        except CapacityExceededError as exc:
            refused.append(exc.cause)

    async with open_runtime(store=store, config=config) as runtime:
        acme = runtime.as_(ACME)
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(create, acme)
        assert refused == ["tenant_sessions"] * 5
        found = (await acme.list()).sessions
        assert len(found) == 3
        await sessions(runtime, 4)
        if not stored:
            return
        assert await refusal(acme.fork(found[0].session_id)) == ("tenant_sessions", None, False)
        await acme.archive(found[0].session_id)
        await acme.archive(found[0].session_id)
        await acme.fork(found[1].session_id)
        assert (await refusal(acme.create_session(None)))[0] == "tenant_sessions"
        await acme.delete(found[2].session_id)
    async with open_runtime(store=store, config=config) as runtime:
        acme = runtime.as_(ACME)
        await acme.create_session(None)
        assert (await refusal(acme.create_session(None)))[0] == "tenant_sessions"


@pytest.mark.parametrize("stored", [True, False])
async def test_files_are_stored_bytes(tmp_path: Path, *, stored: bool) -> None:
    """A file counts at once, and a prompt that is refused at the limit stores none of its own."""
    config = limited(stored_bytes=20_000)
    async with open_runtime(store=tmp_path if stored else None, config=config) as runtime:
        acme = runtime.as_(ACME)
        (own,) = await sessions(acme, 1)
        big, more = (File(letter * 15_000, media_type="text/plain") for letter in (b"a", b"b"))
        await acme.start_turn(own, "hi", attachments=[big])
        for mode in ("busy", "queue"):
            assert (await refusal(acme.start_turn(own, "hi", mode=mode, attachments=[more])))[
                0
            ] == "tenant_stored_bytes"
        assert 15_000 < await supervisor_of(runtime).shared.storage.read(StoredBytes("acme")) < 20_000


async def test_inputs_are_stored_bytes(tmp_path: Path) -> None:
    """Also while they wait, which may be for ever."""
    async with open_runtime(store=tmp_path, config=limited(stored_bytes=20_000)) as runtime:
        acme = runtime.as_(ACME)
        (own,) = await sessions(acme, 1)
        await acme.inject_context(own, "x" * 20_000)
        await trio.sleep(3)
        assert (await refusal(acme.inject_context(own, "x")))[0] == "tenant_stored_bytes"


async def test_stored_bytes(tmp_path: Path) -> None:
    """At the limit nothing begins that would store more, and all goes on when sessions are deleted."""
    config = limited(stored_bytes=20_000)
    async with open_runtime(store=tmp_path, config=config) as runtime:
        acme = runtime.as_(ACME)
        kept, full = await sessions(acme, 2)
        await acme.start_turn(full, "x" * 20_000)
        await trio.sleep(3)
        for call in (
            acme.start_turn(kept, "hi"),
            acme.start_turn(kept, "hi", mode="queue"),
            acme.inject_context(kept, "hi"),
            acme.create_session(None),
            acme.fork(kept),
        ):
            assert await refusal(call) == ("tenant_stored_bytes", None, False)
    async with open_runtime(store=tmp_path, config=config) as runtime:
        acme = runtime.as_(ACME)
        assert (await refusal(acme.start_turn(kept, "hi")))[0] == "tenant_stored_bytes"
        await acme.delete(full)
        await acme.start_turn(kept, "hi")


async def test_a_days_tokens_that_end_in_a_turn() -> None:
    """The turn ends before its next call of the model, as one whose own budget is used up does: that is no crash."""

    @tool
    async def look() -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        return "seen"

    model, recorder = says(*[reply("", ToolUseBlock("c", "look", {}))] * 5), Recorder()
    async with open_runtime(model, tools=[look], config=limited(tokens_per_day=USAGE.total_tokens + 1)) as runtime:
        acme = runtime.as_(ACME)
        (session_id,) = await sessions(acme, 1)
        with pytest.raises(CapacityExceededError):
            await acme.start_turn(session_id, "hi", on_event=recorder)
        assert [event.cause for event in recorder.only(RunFailed)] == ["budget_exhausted"]


@pytest.mark.parametrize("stored", [True, False])
async def test_tokens_of_a_day(tmp_path: Path, *, stored: bool) -> None:
    """They count at once, after a restart and a deletion, until midnight and no later; a turn that runs goes on."""
    config, store = limited(tokens_per_day=2 * USAGE.total_tokens + 1), tmp_path if stored else None
    model = says(*[reply("done")] * 5)

    async with open_runtime(model, store=store, config=config) as runtime:
        acme = runtime.as_(ACME)
        own, other = await sessions(acme, 2)
        for session_id in (own, own, other):
            await acme.start_turn(session_id, "hi")
        for mode in ("busy", "queue"):
            cause, wait, retryable = await refusal(acme.start_turn(own, "hi", mode=mode))
            assert (cause, retryable) == ("tenant_tokens_per_day", True)
            assert wait is not None
            assert 0 < wait <= 86_400
        await acme.inject_context(own, "no turn")
        await runtime.create_session("of another tenant")
        if not stored:
            return
        await acme.delete(other)
    async with open_runtime(model, store=store, config=config) as runtime:
        acme = runtime.as_(ACME)
        assert (await refusal(acme.create_session("hi")))[0] == "tenant_tokens_per_day"
        await tomorrow(runtime)
        await acme.start_turn(own, "hi")


async def test_memory_texts(tmp_path: Path) -> None:
    """Up to the limit texts are remembered, and none beyond it; compactions go on, and each of them is counted."""
    config = attrs.evolve(settings(), tenants={"acme": TenantLimits(memory_texts=4)})
    async with open_runtime(recalling_model(), store=tmp_path, memory=memory_in(tmp_path), config=config) as runtime:
        remembered = []
        for principal in (ACME, OTHER):
            service = runtime.as_(principal)
            (session_id,) = await sessions(service, 1)
            await talk(service, session_id, 17)
            assert (await service.read(session_id)).state.compactions >= 3
            remembered.append(await memory_of(runtime).texts(principal.tenant))
        mine, others = remembered
        assert mine == 4 < others
        refused = {each.name: each for each in runtime.metrics().metrics}["warren_admission_refused_total"]
        counted = {series.labels: series.value for series in refused.series}
        assert counted["tenant_memory_texts",] >= 2


async def test_memory_texts_of_sessions_at_once(tmp_path: Path) -> None:
    """Compactions of many sessions at once do not fill the same room, whatever the limit and the size of each."""
    for number, limit in enumerate((1, 3, 10)):
        folder = tmp_path / f"{number}"
        config = attrs.evolve(settings(), tenants={"acme": TenantLimits(memory_texts=limit)})
        async with open_runtime(recalling_model(), store=folder, memory=memory_in(folder), config=config) as runtime:
            acme = runtime.as_(ACME)
            ids = await sessions(acme, 5)
            async with trio.open_nursery() as nursery:
                for session_id in ids:
                    nursery.start_soon(talk, acme, session_id, 9)
            assert await memory_of(runtime).texts("acme") == limit


async def test_peers(tmp_path: Path) -> None:
    """A message that begins a turn of the peer counts for the tenant of both; the model that sends it is told."""
    call = ToolUseBlock("c", "send_message", {"to": "b", "body": "wake up"})
    model = says(reply("", call), reply("sent or not"))
    async with open_runtime(model, store=tmp_path, config=limited(turns_per_minute=1)) as runtime:
        acme = runtime.as_(ACME)
        await acme.create_session(None, peer=Peer("b", ("a",), keep_alive=True))
        sender = (await acme.create_session(None, peer=Peer("a", ("b",)))).session_id
        await acme.start_turn(sender, "tell b")
        told = [each.message for each in (await acme.history(sender)).messages]
        assert "'acme' has begun 1 turns within a minute" in repr(told)


async def test_a_turn_counts_for_its_token_when_its_client_has_left(tmp_path: Path) -> None:
    """Until the turn ends: else a client could begin any number of them, one connection after the other."""
    ci, gated = attrs.evolve(ACME, name="ci", limits=TokenLimits(running_turns=1)), GatedModel()
    async with open_runtime(gated, store=tmp_path) as runtime:
        token = runtime.as_(ci)
        first, second = await sessions(token, 2)
        with trio.move_on_after(1):
            await token.start_turn(first, "hi", mode="queue")
        assert gated.entered == 1
        assert (await refusal(token.start_turn(second, "hi", mode="queue")))[0] == "token_running_turns"
        gated.gate.set()
        await trio.sleep(1)
        assert (await token.start_turn(second, "hi", mode="queue")).text == "done"


async def test_a_token(tmp_path: Path) -> None:
    """The limits of a token hold beside those of its tenant, for all clients of its name, as they are now."""
    ci = attrs.evolve(ACME, name="ci", limits=TokenLimits(sessions=1, running_turns=1, turns_per_minute=2))
    config = limited(sessions=3, running_turns=2)
    async with open_runtime(FunctionModel(slowly), store=tmp_path, config=config) as runtime:
        acme, token = runtime.as_(ACME), runtime.as_(ci)
        ids = await sessions(acme, 2)
        (own,) = await sessions(token, 1)
        assert (await refusal(token.create_session(None)))[0] == "tenant_sessions"
        await acme.delete(ids.pop())
        assert (await refusal(token.create_session(None)))[0] == "token_sessions"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended, [], "", token.start_turn(ids[0], "hi"))
            await trio.sleep(1)
            assert (await refusal(token.start_turn(own, "hi", mode="queue")))[0] == "token_running_turns"
            await acme.start_turn(own, "hi")
        await token.start_turn(own, "hi")
        cause, wait, _ = await refusal(token.start_turn(own, "hi"))
        assert cause == "token_turns_per_minute"
        assert wait == pytest.approx(9, abs=1)
        more = runtime.as_(attrs.evolve(ci, limits=TokenLimits(turns_per_minute=600)))
        await trio.sleep(1)
        await more.start_turn(own, "hi")


async def test_a_tenant_sees_its_own_figures(tmp_path: Path) -> None:
    """Its sessions, its turns, and what counts against its limits; an operator sees those of each tenant."""
    config = limited(sessions=5, running_turns=1)
    async with open_runtime(FunctionModel(slowly), store=tmp_path, config=config, memory=memory_in(None)) as service:
        acme, other = service.as_(ACME), service.as_(OTHER)
        one, two = await sessions(acme, 2)
        await sessions(other, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acme.start_turn, one, "hi")
            await trio.sleep(1)
            with pytest.raises(CapacityExceededError):
                await acme.start_turn(two, "hi")
            (mine,) = (await acme.tenants()).tenants
            assert (mine.tenant, mine.sessions, mine.live_sessions, mine.running_turns) == ("acme", 2, 2, 1)
            assert mine.limits == config.tenants["acme"]
        await trio.sleep(60)
        (mine,) = (await acme.tenants()).tenants
        assert (mine.running_turns, mine.tokens_per_day) == (0, USAGE.total_tokens)
        assert mine.stored_bytes > 0
        (theirs,) = (await other.tenants()).tenants
        assert (theirs.tenant, theirs.sessions, theirs.tokens_per_day, theirs.limits) == ("other", 3, 0, TenantLimits())
        with pytest.raises(PermissionDeniedError):
            await acme.tenants(all_tenants=True)
        operator = service.as_(Principal("ops", "root", frozenset({"session:read", "tenant:admin", "session:admin"})))
        found = await operator.tenants(all_tenants=True)
        assert [attrs.evolve(each, live_sessions=0) for each in (mine, theirs)] == [
            attrs.evolve(each, live_sessions=0) for each in found.tenants
        ]
        assert [each.tenant for each in (await operator.tenants(all_tenants=True, offset=1)).tenants] == ["other"]
        reads = (await operator.audit(action="read", all_tenants=True)).entries
        assert [(each.tenant, each.outcome) for each in reads] == [("acme", "refused"), ("ops", "done")]


async def test_tokens_of_a_day_end_running_turns() -> None:
    """At their next call of a model: so many turns at once use more than the limit by one call of each at most."""
    limit, calls = 30, 0

    async def works_on(_request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        return reply("", ToolUseBlock("c", "nothing_of_this_name", {}))

    outcomes: list[tuple[str | None, bool]] = []

    async def run(service: Service, session_id: str) -> None:
        with pytest.raises(CapacityExceededError) as caught:
            await service.start_turn(session_id, "hi")
        outcomes.append((caught.value.cause, caught.value.retryable))

    config = attrs.evolve(limited(tokens_per_day=limit), compaction=CompactionConfig())
    async with open_runtime(FunctionModel(works_on), config=config) as runtime:
        acme = runtime.as_(ACME)
        ids = await sessions(acme, 4)
        async with trio.open_nursery() as nursery:
            for each in ids:
                nursery.start_soon(run, acme, each)
        assert outcomes == [("tenant_tokens_per_day", True)] * 4
        assert calls * USAGE.total_tokens == (await acme.usage(by="tenant")).total.input_tokens + 2 * calls
        assert limit <= calls * USAGE.total_tokens < limit + 4 * USAGE.total_tokens
        assert (await refusal(acme.compact(ids[0])))[0] == "tenant_tokens_per_day"
        events = await replay(acme, ids[0])
        assert isinstance(events[-1].event, RunFailed)


@pytest.mark.parametrize("restarted", [False, True])
async def test_turns_that_wait_begin_after_midnight(tmp_path: Path, *, restarted: bool) -> None:
    """No input is lost that was accepted before the tokens of the day were used up, and none of them costs more."""
    config = attrs.evolve(limited(tokens_per_day=1), limits=Limits(max_sessions=1))
    gated, prompts = GatedModel(), []

    async def queue(service: Service, session_id: str) -> None:
        await service.start_turn(session_id, "hi", mode="queue")
        prompts.append(session_id)

    async with open_runtime(gated, store=tmp_path, config=config) as runtime:
        acme = runtime.as_(ACME)
        ids = await sessions(acme, 3)
        async with trio.open_nursery() as nursery:
            for each in ids:
                nursery.start_soon(queue, acme, each)
            await trio.sleep(1)
            gated.gate.set()
            await trio.sleep(60)
            assert len(prompts) == gated.entered == 1
            if restarted:
                nursery.cancel_scope.cancel()
            else:
                await tomorrow(runtime)
                await trio.sleep(5)
                assert gated.entered > 1
                nursery.cancel_scope.cancel()
    if restarted:
        async with open_runtime(gated, store=tmp_path, config=config) as runtime:
            await trio.sleep(60)
            assert gated.entered == 1
            assert [len(await runtime.as_(ACME).inputs(each)) for each in ids].count(1) == 2
            await tomorrow(runtime)
            await trio.sleep(60)
            assert gated.entered > 1


@pytest.mark.parametrize("stored", [True, False])
async def test_tokens_of_a_token(tmp_path: Path, *, stored: bool) -> None:
    """Those of the turns that its clients begin count, in whosever sessions, once, and also after a restart."""
    ci = attrs.evolve(ACME, name="ci", limits=TokenLimits(tokens_per_day=3 * USAGE.total_tokens))
    store, model = tmp_path if stored else None, FunctionModel(slowly)
    async with open_runtime(model, store=store) as runtime:
        acme, token = runtime.as_(ACME), runtime.as_(ci)
        (own,), (other,) = await sessions(token, 1), await sessions(acme, 1)
        for _ in range(3):
            await acme.start_turn(own, "of another client")
        await token.start_turn(other, "hi")
        with trio.move_on_after(1):  # its client leaves
            await token.start_turn(own, "hi", mode="queue")
        await trio.sleep(SECONDS)
        await token.create_session("hi", idempotency_key="k")
        for mode in ("busy", "queue"):
            assert (await refusal(token.start_turn(other, "hi", mode=mode)))[0] == "token_tokens_per_day"
        await acme.start_turn(own, "of another client")
        assert (await acme.usage(by="tenant")).rows[0].turns == 7
        if not stored:
            return
    async with open_runtime(model, store=store) as runtime:
        token = runtime.as_(ci)
        assert (await refusal(token.create_session("hi")))[0] == "token_tokens_per_day"
        more = runtime.as_(attrs.evolve(ci, limits=TokenLimits(tokens_per_day=3 * USAGE.total_tokens + 1)))
        await more.start_turn(own, "hi")
        await tomorrow(runtime)
        await token.start_turn(own, "hi")


@pytest.mark.parametrize("stored", [True, False])
async def test_bytes_of_a_token(tmp_path: Path, *, stored: bool) -> None:
    """Those of the sessions that its name has created, with their files; nobody else is refused for them."""
    ci = attrs.evolve(ACME, name="ci", limits=TokenLimits(stored_bytes=20_000))
    async with open_runtime(store=tmp_path if stored else None) as runtime:
        acme, token = runtime.as_(ACME), runtime.as_(ci)
        (own,), (other,) = await sessions(token, 1), await sessions(acme, 1)
        await acme.start_turn(other, "x" * 30_000)
        await trio.sleep(3)
        big = File(b"a" * 15_000, media_type="text/plain")
        await token.start_turn(own, "x" * 6_000, attachments=[big])
        await trio.sleep(3)
        for call in (token.start_turn(own, "hi"), token.inject_context(own, "hi"), token.create_session(None)):
            assert (await refusal(call))[0] == "token_stored_bytes"
        await acme.start_turn(own, "hi")
        if stored:
            await token.delete(own)
            await token.create_session("hi")


async def test_texts_of_a_token(tmp_path: Path) -> None:
    """Those of the sessions that its name has created: compactions of these remember nothing more."""
    ci = attrs.evolve(ACME, name="ci", limits=TokenLimits(memory_texts=4))
    async with open_runtime(
        recalling_model(), store=tmp_path, memory=memory_in(tmp_path), config=settings()
    ) as runtime:
        acme, token = runtime.as_(ACME), runtime.as_(ci)
        (theirs,), (own,) = await sessions(acme, 1), await sessions(token, 1)
        await talk(acme, theirs, 17)
        of_others = await memory_of(runtime).texts("acme")
        assert of_others > 4
        await talk(token, own, 17)
        assert 4 <= await memory_of(runtime).texts("acme", [own]) < of_others
        await talk(acme, theirs, 9)
        assert await memory_of(runtime).texts("acme", [theirs]) > of_others
        refused = {each.name: each for each in runtime.metrics().metrics}["warren_admission_refused_total"]
        assert {series.labels: series.value for series in refused.series}["token_memory_texts",] >= 1


async def test_only_accepted_turns_count_for_the_rate(tmp_path: Path) -> None:
    """Not those that are refused for another reason or cannot begin, nor an input whose key was there before."""
    async with open_runtime(store=tmp_path, config=limited(turns_per_minute=2)) as runtime:
        acme = runtime.as_(ACME)
        (own,) = await sessions(acme, 1)
        (gone,) = await sessions(acme, 1)
        await acme.start_turn(own, "hi", mode="queue", idempotency_key="k")
        for _ in range(3):
            await acme.start_turn(own, "hi", mode="queue", idempotency_key="k")
            await acme.archive(gone)
            for mode in ("busy", "queue"):
                with pytest.raises(SessionNotFoundError):
                    await acme.start_turn(gone, "hi", mode=mode)
            with pytest.raises(InvalidParamsError):
                await acme.start_turn(own, "hi", model="none:of this name")
        await acme.start_turn(own, "the second one")
        assert (await refusal(acme.start_turn(own, "hi")))[0] == "tenant_turns_per_minute"


@pytest.mark.parametrize("stored", [True, False])
async def test_a_repeated_key_is_answered_at_a_limit(tmp_path: Path, *, stored: bool) -> None:
    """With the result of the first call, whether its turn has ended or runs; that counts as no refusal."""
    config, outcomes = limited(turns_per_minute=2, stored_bytes=20_000), list[str]()
    async with open_runtime(FunctionModel(slowly), store=tmp_path if stored else None, config=config) as runtime:
        acme = runtime.as_(ACME)
        created = await acme.create_session("hi", idempotency_key="c")
        own = created.session_id
        assert await acme.inject_context(own, "x" * 20_000, idempotency_key="t")
        async with trio.open_nursery() as nursery:
            for key in ("k", "k"):
                nursery.start_soon(ended, outcomes, "k", acme.start_turn(own, "hi", mode="queue", idempotency_key=key))
                await trio.sleep(1)
            await trio.sleep(3)  # so that the bytes are counted anew
            assert not await acme.inject_context(own, "x" * 20_000, idempotency_key="t")
            assert outcomes == []
        assert outcomes == ["k", "k"]
        assert (await acme.create_session("hi", idempotency_key="c")) == created
        assert (await acme.start_turn(own, "hi", mode="queue", idempotency_key="k")).text == "done"
        tenancy = supervisor_of(runtime).shared.limiter.tenancy
        assert tenancy.refused.total() == 0
        await refusal(acme.start_turn(own, "hi", mode="queue", idempotency_key="new"))
        await refusal(acme.inject_context(own, "more", idempotency_key="more"))
        assert tenancy.refused.total() == 2


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_session_is_not_left_without_its_turn(tmp_path: Path, key: str | None) -> None:
    """Of many that are created at once with a prompt, those that are refused leave nothing behind."""
    refused: list[str | None] = []

    async def create(service: Service, number: int) -> None:
        files = [File(b"%d" % number, media_type="text/plain")]
        try:
            await service.create_session("hi", idempotency_key=key and f"{key}{number}", attachments=files)
        except CapacityExceededError as exc:
            refused.append(exc.cause)

    async with open_runtime(Reader(slowly), store=tmp_path, config=limited(running_turns=2)) as runtime:
        acme = runtime.as_(ACME)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(create, acme, number)
        assert refused == ["tenant_running_turns"] * 2
        assert len((await acme.list()).sessions) == 2
        for number in range(4):
            await create(acme, number)
        assert len((await acme.list()).sessions) == (6 if key is None else 4)


async def test_a_token_has_one_rate_in_all_tenants() -> None:
    """One that names many tenants begins no more turns by it, and the accounts of tokens that came and went are few."""
    limits = TokenLimits(turns_per_minute=2, running_turns=1)
    own = Login(Principal("default", "ci", frozenset(SCOPES), limits))
    async with open_runtime(FunctionModel(slowly)) as runtime:
        tenancy = supervisor_of(runtime).shared.limiter.tenancy
        services = [runtime.as_(own.within(each).principal) for each in ("default", "acme", "other")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services[0].create_session, "hi")
            await trio.sleep(1)
            assert (await refusal(services[1].create_session("hi")))[0] == "token_running_turns"
        await services[1].create_session("hi")
        assert (await refusal(services[2].create_session("hi")))[0] == "token_turns_per_minute"
        for number in range(3_000):
            tenancy.of(own.within(f"t{number}").principal)
            tenancy.of(Principal("acme", f"n{number}", limits=limits))
        del services
        gc.collect()
        assert sum(isinstance(each, Account) for each in gc.get_objects()) < 1_100
        assert (await refusal(runtime.as_(own.within("new").principal).create_session("hi")))[
            0
        ] == "token_turns_per_minute"


async def test_a_repeated_deletion_counts_nothing_anew(tmp_path: Path) -> None:
    """Else a client could have all bytes of its tenant summed by each request."""
    async with open_runtime(store=tmp_path, config=limited(stored_bytes=20_000, sessions=9)) as runtime:
        acme, tenancy = runtime.as_(ACME), supervisor_of(runtime).shared.limiter.tenancy
        own, gone = await sessions(acme, 2)
        await acme.delete(gone)
        await acme.start_turn(own, "hi")
        await trio.sleep(0.5)
        (account,) = tenancy.of(ACME)
        good_until = account.figure("stored_bytes").good_until
        for _ in range(2):
            await acme.delete(gone)
            await acme.archive(own)
        with pytest.raises(SessionNotFoundError):
            await acme.start_turn(own, "hi")
        assert account.figure("stored_bytes").good_until == good_until


@pytest.mark.parametrize("mode", ["busy", "queue", "left"])
async def test_two_tokens_of_a_name(mode: Any, tmp_path: Path) -> None:
    """Each request is held against the limits of its own token, whoever came before; the counts are the name's."""
    narrow = attrs.evolve(ACME, name="ci", limits=TokenLimits(sessions=2, tokens_per_day=3 * USAGE.total_tokens))
    wide = attrs.evolve(narrow, limits=TokenLimits(sessions=3, tokens_per_day=300 * USAGE.total_tokens))
    calls = 0

    async def works_on(request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal calls
        await trio.sleep(1)
        prompts = [each.content for each in request.messages if isinstance(each, UserMessage)]
        if prompts[-1] != "on and on":
            return reply("done")
        calls += 1
        return reply("", ToolUseBlock(str(calls), "missing", {}))

    async with open_runtime(FunctionModel(works_on), store=tmp_path) as runtime:
        one, two = runtime.as_(narrow), runtime.as_(wide)
        own, other = await sessions(one, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.start_turn, own if mode == "left" else other, "hi")
            await trio.sleep(0.1)
            if mode == "left":  # its turn waits for that of the other token
                with trio.move_on_after(0.1):
                    await one.start_turn(own, "on and on", mode="queue")
            else:
                await trio.sleep(1)
                assert (await refusal(one.start_turn(own, "on and on", mode=mode)))[0] == "token_tokens_per_day"
            await trio.sleep(10)
        assert calls == 2
        await two.start_turn(other, "hi")
        assert (await refusal(one.create_session(None)))[0] == "token_sessions"
        assert (await refusal(one.start_turn(own, "hi")))[0] == "token_tokens_per_day"
        await two.create_session(None)
        assert (await refusal(two.create_session(None)))[0] == "token_sessions"


async def test_the_rate_of_two_tokens_of_a_name() -> None:
    """However many turns the one begins meanwhile, the other begins no more than it may alone."""
    narrow = attrs.evolve(ACME, name="ci", limits=TokenLimits(turns_per_minute=2))
    async with open_runtime() as runtime:
        one, two = runtime.as_(narrow), runtime.as_(attrs.evolve(narrow, limits=TokenLimits(turns_per_minute=600)))
        (own,) = await sessions(one, 1)
        begun = 0
        for _ in range(120):
            await trio.sleep(0.5)
            with contextlib.suppress(CapacityExceededError):
                await two.start_turn(own, "hi")
            with contextlib.suppress(CapacityExceededError):
                await one.start_turn(own, "hi")
                begun += 1
        assert begun in (2, 3)


async def test_figures_of_tenants_that_are_invented() -> None:
    """An operator may name any number of them: what is kept of them is bounded."""
    async with open_runtime() as runtime:
        tenancy = supervisor_of(runtime).shared.limiter.tenancy
        kept = tenancy.observed("t0")
        assert tenancy.observed("t0") is kept
        for number in range(3_000):
            tenancy.observed(f"t{number}")
        del kept
        gc.collect()
        assert sum(isinstance(each, Account) for each in gc.get_objects()) < 1_100
