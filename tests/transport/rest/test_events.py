"""Server-sent events from end to end: real sockets, the real runtime, a model in the test's hand."""

import logging
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.fake_service import FakeService, FakeTurn
from tests.support.models import Puppet
from tests.support.waiting import AT_ONCE
from tests.transport.clients import HOST, connect, gateway
from tests.transport.rest.clients import (
    Events,
    client,
    create,
    events,
    free,
    port_of,
    problem,
    rest,
    seqs,
    text,
    until_free,
    unwatched,
    when_free,
)
from tests.transport.rest.serving import served
from warren.conversation.events import ToolExecutionStarted, TurnStarted
from warren.settings.config import Config, Limits, StoreConfig

ASK = {"prompt": "go"}


async def ask(http: httpx.AsyncClient, session_id: str) -> httpx.Response:
    """Run a turn."""
    return await http.post(f"/sessions/{session_id}/messages", json=ASK)


async def test_the_first_turn_of_a_session_is_watched_from_its_beginning() -> None:
    """A session is created without a turn, followed, then asked: its follower misses nothing."""
    async with served() as (_, http):
        session_id = await create(http)
        async with events(port_of(http), session_id) as followed:
            result = (await ask(http, session_id)).json()
            found = await followed.until("run_completed")
        assert [event.kind for event in found][:2] == ["run_started", "turn_started"]
        assert seqs(found) == list(range(1, found[-1].id + 1))
        assert text(found) == result["text"] == "go"
        assert all(event.data["seq"] == event.id for event in found)
        assert all(event.data["event"]["type"] == event.kind for event in found)
        assert all(event.data["session_id"] == session_id for event in found)


async def test_events_come_as_they_happen() -> None:
    """A piece of an answer is there before the next one is made, and the head before anything."""
    puppet = Puppet()
    async with served(puppet=puppet) as (_, http), trio.open_nursery() as nursery:
        session_id = await create(http, model="puppet")
        async with events(port_of(http), session_id) as followed:
            assert followed.head is not None
            fields = {name.decode(): value.decode() for name, value in followed.head.headers}
            assert fields["content-type"] == "text/event-stream"
            assert fields["cache-control"] == "no-store"
            nursery.start_soon(ask, http, session_id)
            for word in ("one ", "two ", "three "):
                puppet.say(word)
                assert text(await followed.until("text_delta")) == word
            puppet.say(None)
            await followed.until("run_completed")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("by_header", [False, True])
async def test_a_client_that_comes_back_gets_exactly_what_it_missed(
    tmp_path: Path,
    stored: bool,  # noqa: FBT001
    by_header: bool,  # noqa: FBT001
) -> None:
    """Cut off in mid-turn, it goes on after the id it has seen last, while the turn goes on."""
    puppet = Puppet()
    async with served(tmp_path if stored else None, puppet=puppet) as (_, http), trio.open_nursery() as nursery:
        session_id = await create(http, model="puppet")
        async with events(port_of(http), session_id) as followed:
            nursery.start_soon(ask, http, session_id)
            puppet.say("one ")
            before = await followed.until("text_delta")
        puppet.say("two ")
        seen = str(before[-1].id)
        query, headers = ("?after_seq=0", {"Last-Event-ID": seen}) if by_header else (f"?after_seq={seen}", {})
        async with events(port_of(http), session_id, query, **headers) as followed:
            puppet.say("three", None)
            after = await followed.until("run_completed")
        assert seqs(before + after) == list(range(1, after[-1].id + 1))
        assert text(before + after) == "one two three"
        async with events(port_of(http), session_id, "?after_seq=0") as followed:
            assert seqs(await followed.until("run_completed")) == seqs(before + after)


async def test_a_client_comes_back_after_a_restart(tmp_path: Path) -> None:
    """The log is stored: ids go on where they were."""
    async with served(tmp_path) as (_, http):
        session_id = await create(http, prompt="before")
        async with events(port_of(http), session_id, "?after_seq=0") as followed:
            before = await followed.until("run_completed")
    async with served(tmp_path) as (_, http):
        async with events(port_of(http), session_id, Last_Event_ID=str(before[-2].id)) as followed:
            await ask(http, session_id)
            after = await followed.until("run_completed")
            after += await followed.until("run_completed")
        assert after[0].data == before[-1].data
        assert after[1].kind == "run_started"
        assert seqs(after) == sorted(set(seqs(after)))


async def test_what_cannot_be_followed() -> None:
    """An unknown session, a place that is not in the log, and an id that is none: errors, no streams."""
    async with served() as (_, http):
        session_id = await create(http)
        here = f"/sessions/{session_id}/events"
        assert problem(await http.get("/sessions/nobody/events"))[:2] == (404, "SESSION_NOT_FOUND")
        assert problem(await http.get(f"{here}?after_seq=9")) == (409, "INVALID_PARAMS", "$.after_seq")
        ahead = await http.get(here, headers={"Last-Event-ID": "9"})
        assert problem(ahead) == (409, "INVALID_PARAMS", "$.headers.last-event-id")
        for bad in ("x", "-1", "1.5", "9" * 30):
            response = await http.get(here, headers={"Last-Event-ID": bad})
            assert problem(response) == (422, "INVALID_PARAMS", "$.headers.last-event-id")
        for bad in ("-1", "x", str(2**63)):
            response = await http.get(f"{here}?after_seq={bad}", headers={"Last-Event-ID": "0"})
            assert problem(response) == (422, "INVALID_PARAMS", "$.after_seq")


async def test_silence_has_a_heartbeat() -> None:
    """If nothing happens, comments come, and events are found among them."""
    async with served() as (service, _), gateway(service, heartbeat=0.02) as port, client(port) as http:
        session_id = await create(http)
        async with events(port, session_id) as followed:
            await trio.sleep(0.2)
            await ask(http, session_id)
            await followed.until("run_completed")
            assert followed.comments >= 3


@pytest.mark.parametrize(
    ("stored", "verb", "way"), [(False, "POST", "/archive"), (True, "POST", "/archive"), (True, "DELETE", "")]
)
async def test_a_stream_ends_with_its_session(tmp_path: Path, stored: bool, verb: str, way: str) -> None:  # noqa: FBT001
    """When the session is archived or deleted, a last message says that there is nothing to come back for."""
    async with served(tmp_path if stored else None) as (_, http):
        session_id = await create(http)
        async with events(port_of(http), session_id) as followed:
            await ask(http, session_id)
            assert (await http.request(verb, f"/sessions/{session_id}{way}")).status_code == 200
            with trio.fail_after(5):
                assert (await followed.rest())[-1].kind == "run_completed"
        assert followed.last_word == {"session_id": session_id}


async def test_who_comes_back_to_a_session_that_is_over(tmp_path: Path) -> None:
    """Missed events of an archived session come, with the same last word; a deleted one is not there."""
    async with served(tmp_path) as (_, http):
        session_id = await create(http, prompt="go")
        await http.post(f"/sessions/{session_id}/archive")
        async with events(port_of(http), session_id, "?after_seq=0") as followed:
            with trio.fail_after(5):
                found = await followed.rest()
        assert (found[0].kind, found[-1].kind) == ("run_started", "run_completed")
        assert followed.last_word == {"session_id": session_id}
        await http.delete(f"/sessions/{session_id}")
        assert problem(await http.get(f"/sessions/{session_id}/events"))[:2] == (404, "SESSION_NOT_FOUND")


@pytest.mark.parametrize("stored", [False, True])
async def test_a_slow_reader_holds_no_turn_up_and_gets_everything(tmp_path: Path, *, stored: bool) -> None:
    """A turn tells far more than the sockets hold before its reader reads at all; the reader then misses nothing."""

    async def flood() -> None:
        for number in range(2_000):
            puppet.say(f"{number:05} " + "x" * 5_000)
            if number % 50 == 0:
                await trio.lowlevel.checkpoint()
        puppet.say(None)

    puppet = Puppet()
    store = StoreConfig(tmp_path) if stored else None
    config = Config(store=store, limits=Limits(max_answer=2**29))  # the texts of an answer may have a part of it
    async with served(config=config, puppet=puppet) as (_, http):
        session_id = await create(http, model="puppet")
        async with events(port_of(http), session_id) as followed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood)
                with trio.fail_after(20):
                    assert (await ask(http, session_id)).status_code == 200
            found = await followed.until("run_completed")
        assert seqs(found) == list(range(1, found[-1].id + 1))
        assert len(text(found)) == 2_000 * 5_006


async def test_a_client_that_goes_away_frees_everything_and_ends_nothing(tmp_path: Path) -> None:
    """Its subscription is gone, also where nothing happens, its place is free, and the turn runs to its end."""
    puppet = Puppet()
    config = Config(store=StoreConfig(tmp_path))
    async with served(config=config, puppet=puppet) as (service, _), gateway(service, max_http=2) as port:
        async with client(port) as http, trio.open_nursery() as nursery:
            session_id = await create(http, model="puppet")
            nursery.start_soon(ask, http, session_id)
            await puppet.reached(1)
            async with events(port, session_id):
                assert not await free(port)
                puppet.say("the ")
            await until_free(port)
            puppet.say("end", None)
        await until_free(port)
        async with client(port) as http:
            shown = (await when_free(http, f"/sessions/{session_id}")).json()
            assert shown["state"]["last_assistant_text"] == "the end"


async def test_a_watcher_is_taken_off_the_sessions_list() -> None:
    """The service sees that a stream was left, though nothing was sent to it meanwhile."""
    service = FakeService()
    async with rest(service) as http:
        session_id = await create(http)
        async with events(port_of(http), session_id):
            assert service.readers(session_id) == 1
        with trio.fail_after(AT_ONCE):
            await unwatched(service, session_id)


async def test_a_turn_whose_caller_goes_away_is_not_cancelled(tmp_path: Path) -> None:
    """A client that resets its connection in mid-turn cancels nothing: the turn ends and is stored."""
    puppet = Puppet()
    async with served(tmp_path, puppet=puppet) as (_, http):
        session_id = await create(http, model="puppet")
        async with client(port_of(http)) as hasty, events(port_of(http), session_id) as followed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, hasty, session_id)
                await puppet.reached(1)
                nursery.cancel_scope.cancel()
            puppet.say("all of it", None)
            await followed.until("run_completed")
    async with served(tmp_path) as (_, http):
        assert (await http.get(f"/sessions/{session_id}")).json()["state"]["last_assistant_text"] == "all of it"


async def test_an_event_that_json_cannot_hold_is_reported_missing(caplog: pytest.LogCaptureFixture) -> None:
    """Text that UTF-8 has no bytes for costs the one event."""

    async def odd(turn: FakeTurn) -> None:
        turn.publish(ToolExecutionStarted("1", "\ud800"))
        turn.publish(TurnStarted(1))

    async with rest(FakeService(behaviour=odd)) as http:
        session_id = await create(http)
        async with events(port_of(http), session_id) as followed:
            await ask(http, session_id)
            found = await followed.until("run_completed")
        assert [event.kind for event in found] == ["run_started", "stream_truncated", "turn_started", "run_completed"]
        assert found[1].id == found[1].data["event"]["resume_after"] == 1
    assert "cannot be sent" in caplog.text


async def test_a_subscription_that_fails_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The client is not left hanging: it can come back for the rest."""
    service = FakeService()
    async with rest(service) as http:
        session_id = await create(http)
        async with events(port_of(http), session_id) as followed:
            service.sessions[session_id].store(fault=RuntimeError("boom"), gone=1)
            with trio.fail_after(AT_ONCE):
                assert await followed.rest() == []
            assert followed.last_word is None
        assert (await http.get("/health")).status_code == 200
    assert "a stream of its events failed" in caplog.text


async def test_a_shutdown_ends_streams_and_answers_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    """Streams end whole, a turn's caller learns why it gets no result, and nothing is logged as wrong."""
    puppet, answers, answered = Puppet(), list[httpx.Response](), trio.Event()

    async def note(http: httpx.AsyncClient, session_id: str) -> None:
        answers.append(await ask(http, session_id))
        answered.set()

    async with served(puppet=puppet) as (service, _), trio.open_nursery() as callers:
        async with gateway(service, close_timeout=2.0) as port:
            http = await callers.start(_hold, port)
            session_id = await create(http, model="puppet")
            stream = await trio.open_tcp_stream(HOST, port)
            followed = await Events(stream).open(f"/sessions/{session_id}/events")
            callers.start_soon(note, http, session_id)
            await followed.until("turn_started")
            started = trio.current_time()
        assert trio.current_time() - started < 3
        async with stream:
            assert await followed.rest() == []
        assert followed.last_word is None
        await answered.wait()
        assert problem(answers[0])[:2] == (500, "AGENT_ERROR")
        assert answers[0].json()["details"]["cause"] == "shutting_down"
        callers.cancel_scope.cancel()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _hold(port: int, *, task_status: trio.TaskStatus[httpx.AsyncClient]) -> None:
    async with client(port) as http:
        task_status.started(http)
        await trio.sleep_forever()


async def test_a_websocket_and_a_stream_tell_the_same() -> None:
    """The followers of a session get the same on both surfaces, envelope for envelope."""
    async with served() as (_, http), connect(port_of(http)) as other:
        session_id = await create(http)
        await other.call("session/subscribe", session_id=session_id)
        async with events(port_of(http), session_id) as followed:
            await ask(http, session_id)
            found = await followed.until("run_completed")
        await other.until("run_completed")
        told = other.events(session_id)
        assert [event["event"]["type"] for event in told] == [event.kind for event in found]
        assert told[-1] == found[-1].data
