"""A runtime whose database server goes away: turns wait or fail, and go on by themselves when it is back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal

import attrs
import pytest
import trio

from tests.promises.processes import soon
from tests.support.models import FunctionModel, reply
from tests.support.postgres import database
from tests.support.postgres_proxy import Wire, wire_to
from tests.support.waiting import until
from tests.transport.clients import gateway as serving
from warren.base.errors import StoreError, WarrenError
from warren.calls.facade import RuntimeService, SessionService
from warren.client import connect
from warren.conversation.events import Envelope, RunCompleted
from warren.conversation.messages import UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, PostgresConfig
from warren.transport.embed import open_supervisor

TIMEOUT: Final = 0.5
GENEROUS: Final = 30.0
"""Seconds for an answer on a machine that may be busy."""
Way = Literal["killed", "silent"]


@asynccontextmanager
async def opened(patience: float) -> AsyncIterator[tuple[RuntimeService, Wire]]:
    """Open a runtime whose store is at the other end of a wire."""
    with database() as url:
        async with wire_to(url) as wire:
            config = Config(store=PostgresConfig(wire.url, timeout=patience, lease=60.0))
            async with open_supervisor(config, environ={}) as service:
                yield service, wire
                wire.closed = False


async def prompts(service: RuntimeService, session_id: str) -> list[str]:
    """Return the prompts that are stored, in order."""
    page = await service.history(session_id)
    return [each.message.content for each in page.messages if isinstance(each.message, UserMessage)]


async def test_a_short_absence_is_not_noticed() -> None:
    """Turns that end meanwhile wait, and are stored once."""
    async with opened(30.0) as (service, wire):
        ids = [(await service.create_session("0")).session_id for _ in range(3)]
        for number in range(1, 5):
            wire.closed = True
            wire.cut()
            async with trio.open_nursery() as nursery:
                for session_id in ids:
                    nursery.start_soon(service.start_turn, session_id, str(number))
                await trio.sleep(0.2)
                wire.closed = False
        for session_id in ids:
            assert await prompts(service, session_id) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("swallowed", [False, True])
async def test_a_long_absence_fails_turns_and_ends_nothing(swallowed: bool) -> None:  # noqa: FBT001 - see above
    """Each turn gets an error that may be retried; when the server is back, sessions go on without a restart."""
    async with opened(0.3) as (service, wire):
        session_id = (await service.create_session("0")).session_id
        for number in range(1, 8):
            if swallowed:  # the commit arrives, and its answer is lost
                wire.fail_way, wire.carried, wire.fail_at = "down", 0, 1
            else:
                wire.closed = True
                wire.cut()
            with pytest.raises(WarrenError) as failed:
                await service.start_turn(session_id, str(number))
            assert failed.value.retryable or failed.value.cause == "outcome_unknown", failed.value.body()
            wire.closed, wire.fail_at = False, None
            await soon(lambda: service.start_turn(session_id, f"{number} again"))  # noqa: B023 - it is called at once
        said = await prompts(service, session_id)
        assert len(set(said)) == len(said), "a turn is there twice"
        assert [each for each in said if "again" in each] == [f"{number} again" for number in range(1, 8)]
        if not swallowed:
            assert len(said) == 8, "a turn that failed is there"
        assert service.health().status == "ok"


@attrs.define(eq=False)
class Talkative:
    """A model that answers, except a prompt that begins with `long`; it counts its calls."""

    calls: int = 0

    async def answer(self, request: ModelRequest, _emit: Any) -> ModelReply:
        """Answer, or take for ever."""
        self.calls += 1
        if "long" in str(request.messages[-1]):
            await trio.sleep_forever()
        return reply("said")


Call = Callable[[RuntimeService, str], Awaitable[Any]]
WRITES: Final[dict[str, Call]] = {
    "turn": lambda service, session_id: service.start_turn(session_id, "x"),
    "keyed turn": lambda service, session_id: service.start_turn(session_id, "x", mode="queue", idempotency_key="k"),
    "queued turn": lambda service, session_id: service.start_turn(session_id, "x", mode="queue"),
    "context": lambda service, session_id: service.inject_context(session_id, "x"),
    "archive": lambda service, session_id: service.archive(session_id),
    "delete": lambda service, session_id: service.delete(session_id),
    "fork": lambda service, session_id: service.fork(session_id),
    "label": lambda service, session_id: service.label(session_id, title="x"),
    "create": lambda service, _session_id: service.create_session(None),
    "create with a key": lambda service, session_id: service.create_session("x", idempotency_key=session_id),
}
READS: Final[dict[str, Call]] = {
    "list": lambda service, _session_id: service.list(),
    "history": lambda service, session_id: service.history(session_id),
    "inputs": lambda service, session_id: service.inputs(session_id),
    "usage": lambda service, _session_id: service.usage(),
}


@asynccontextmanager
async def cut_off(lease: float) -> AsyncIterator[tuple[RuntimeService, Wire, Talkative, list[str]]]:
    """Open a runtime with sessions in memory, whose server is back after the block."""
    model = Talkative()
    with database() as url:
        async with wire_to(url) as wire:
            config = Config(store=PostgresConfig(wire.url, timeout=TIMEOUT, lease=lease), provider="own", model="own")
            providers = {"own": FunctionModel(model.answer)}
            async with open_supervisor(config, providers=providers, environ={}) as service:
                ids = [(await service.create_session("0")).session_id for _ in range(len(WRITES) + 2)]
                try:
                    yield service, wire, model, ids
                finally:
                    back(wire)


def away(wire: Wire, way: Way) -> None:
    """Let the server be gone, or silent."""
    if way == "killed":
        wire.closed = True
        wire.cut()
    else:
        wire.hold()


def back(wire: Wire) -> None:
    """Let the server be there again; connections that it had are gone."""
    wire.closed = False
    wire.go_on()
    wire.cut()


@pytest.mark.parametrize("way", ["killed", "silent"])
@pytest.mark.parametrize("lapsed", [False, True], ids=["at once", "after a lease"])
async def test_every_request_is_answered(way: Way, lapsed: bool) -> None:  # noqa: FBT001
    """Whatever is asked of a live session: `unreachable`, which may be tried again, and works with the server back."""
    async with cut_off(1.0 if lapsed else 60.0) as (service, wire, model, ids):
        calls = dict(zip(WRITES, ids, strict=False))
        away(wire, way)
        if lapsed:
            await trio.sleep(1.5)
        before, answers = model.calls, dict[str, WarrenError]()

        async def ask(name: str, call: Awaitable[Any]) -> None:
            with pytest.raises(StoreError) as refused, trio.fail_after(GENEROUS):
                await call
            answers[name] = refused.value

        async with trio.open_nursery() as nursery:
            for name, call in {**WRITES, **READS}.items():
                nursery.start_soon(ask, name, call(service, calls.get(name, ids[-1])))
        unsure = {name for name, error in answers.items() if error.cause == "outcome_unknown"}
        assert {error.cause for error in answers.values()} <= {"unreachable", "outcome_unknown"}
        assert all(error.retryable for name, error in answers.items() if name not in unsure)
        assert not any(answers[name].retryable for name in unsure if "key" not in name)
        assert unsure <= {"turn"}, "only a turn that had begun may be stored"
        assert lapsed <= (model.calls == before), "a model was asked though nothing could be stored"
        back(wire)
        for name, call in WRITES.items():
            if name not in unsure:
                await soon(partial(call, service, calls[name]))


@pytest.mark.parametrize("way", ["killed", "silent"])
async def test_a_follower_waits_for_the_server(way: Way) -> None:
    """It is told of no gap, and of each event once the server is back: within the process and over the socket."""
    async with cut_off(60.0) as (service, wire, _, ids), serving(service) as port, connect(f"127.0.0.1:{port}") as far:
        seen: dict[SessionService, list[Envelope]] = {service: [], far: []}

        async def follow(each: SessionService) -> None:
            async with each.subscribe(ids[0], after_seq=0) as events:
                async for envelope in events:
                    seen[each].append(envelope)

        async with trio.open_nursery() as nursery:
            away(wire, way)
            for each in seen:
                nursery.start_soon(follow, each)
            await trio.sleep(3 * TIMEOUT)
            assert not any(seen.values())
            back(wire)
            with trio.fail_after(GENEROUS):
                await until(lambda: all(found and isinstance(found[-1].event, RunCompleted) for found in seen.values()))
            nursery.cancel_scope.cancel()
        kinds = ["RunStarted", "TurnStarted", "TextComplete", "TurnCompleted", "RunCompleted"]
        assert [[type(each.event).__name__ for each in found] for found in seen.values()] == [kinds, kinds]


@pytest.mark.parametrize("way", ["killed", "silent"])
async def test_an_interrupt_need_not_wait_for_the_server(way: Way) -> None:
    """It ends the call of the model, and answers long before the turn could be stored or the grace is over."""
    async with cut_off(1.0) as (service, wire, _, ids), trio.open_nursery() as nursery:
        ended: list[WarrenError] = []

        async def turn() -> None:
            with pytest.raises(WarrenError) as lost:
                await service.start_turn(ids[0], "long")
            ended.append(lost.value)

        nursery.start_soon(turn)
        await trio.sleep(0.2)
        away(wire, way)
        await trio.sleep(1.5)
        with pytest.raises(StoreError) as refused:
            await service.interrupt(ids[0])
        assert (refused.value.cause, refused.value.retryable, ended) == ("unreachable", True, [])
        back(wire)
        await soon(lambda: service.start_turn(ids[0], "again", mode="queue"))
        assert len(ended) == 1
