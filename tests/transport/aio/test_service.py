"""`warren.aio`: the service of a runtime from an asyncio program, as its users meet it."""

import asyncio
import contextvars
import threading
import time
from pathlib import Path

import pytest
import trio

import warren.aio
from tests.transport.aio.asyncio_test import Gate, on_asyncio
from warren import Agent, Config, Gates, StoreConfig, tool
from warren.agents.hooks import Asked, Denied, Go, HookedCall, Hooks, ToolOutcome
from warren.base.errors import AgentError, InvalidParamsError, ProviderError, SessionBusyError, SessionNotFoundError
from warren.base.principals import LOCAL, Principal
from warren.calls.streams import EventReader
from warren.conversation.events import Envelope, RunCompleted, RunStarted, TextDelta, ToolApprovalRequested
from warren.conversation.views import SessionView, TurnResult
from warren.testing import ScriptedModel, ScriptedStep, call, fail, say
from warren.tools import current_call

ECHO = Config(model="echo")


def test_a_turn_a_stream_and_a_session() -> None:
    """The calls, the stream of a turn with its texts, and the handle of a session are those of trio."""

    async def main() -> None:
        async with warren.aio.open_supervisor(ECHO) as service:
            made = await service.create_session("one two")
            assert made.text == "one two"
            async with service.stream_turn(made.session_id, "three four") as events:
                heard = [each.event async for each in events]
                result = await events.result()
            assert isinstance(heard[0], RunStarted)
            assert isinstance(heard[-1], RunCompleted)
            assert "".join(each.delta for each in heard if isinstance(each, TextDelta)) == result.text == "three four"
            async with service.stream_turn(made.session_id, "five six") as events:
                assert "".join([text async for text in events.texts()]) == "five six"
            session = service.session(id=made.session_id)
            assert (await session.history()).total == 6
            assert [each.session_id for each in (await service.list()).sessions] == [made.session_id]

    on_asyncio(main)


def test_errors_are_those_of_trio() -> None:
    """Each error is raised as itself, in no group, where the caller awaits."""

    async def main() -> None:
        model = ScriptedModel([fail("no such model")])
        async with warren.aio.open_supervisor(ECHO, providers={"bad": model}) as service:
            with pytest.raises(SessionNotFoundError):
                await service.read("nobody")
            with pytest.raises(SessionNotFoundError):
                async with service.subscribe("nobody"):
                    raise AssertionError
            with pytest.raises(InvalidParamsError, match="temperature"):
                await service.create_session("x", temperature=-1.0)
            with pytest.raises(ProviderError, match="no such model") as caught:
                await service.create_session("x", model="bad")
            assert caught.value.session_id is not None
            session = await service.create_session(None)
            async with service.stream_turn(session.session_id, "a") as events:
                await events.result()
            with pytest.raises(KeyError, match="mine"):
                async with service.stream_turn(session.session_id, "b"):
                    raise KeyError("mine")

    on_asyncio(main)


def test_tools_and_models_run_on_the_loop_of_the_program() -> None:
    """Async functions see the program's loop, their call and its cancellation; plain ones run in threads."""

    async def main() -> None:
        seen = dict[str, object]()
        loop = asyncio.get_running_loop()

        @tool
        async def on_loop(text: str) -> str:
            """Do it on the loop."""
            await asyncio.sleep(0)
            seen["async"] = asyncio.get_running_loop() is loop, current_call().name
            return text.upper()

        @tool
        def in_thread() -> str:
            """Do it in a thread."""
            seen["sync"] = threading.current_thread() is not threading.main_thread()
            return "done"

        @tool(loop="trio")
        async def on_trio() -> str:
            """Do it on trio."""
            await trio.lowlevel.checkpoint()
            return "trio"

        @tool(timeout=0.2)
        async def hangs() -> str:
            """Never end."""
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen["cancelled"] = True
                raise
            return ""

        steps: list[ScriptedStep | list[ScriptedStep]] = [
            [call("on_loop", text="a"), call("in_thread"), call("on_trio")],
            call("hangs"),
            say("Over."),
        ]
        model = ScriptedModel(steps)
        slow = Gate()
        async with warren.aio.open_supervisor(
            ECHO, tools=[on_loop, in_thread, on_trio], providers={"script": model, "slow": slow}
        ) as service:
            result = await service.create_session("x", model="script", extra_tools=[hangs])
            first, second = (each.messages[-1].results for each in model.requests[1:])  # type: ignore[union-attr]
            assert [each.content for each in first] == ["A", "done", "trio"]
            assert second[0].content == "timed out after 0.2 s"
            assert seen == {"async": (True, "on_loop"), "sync": True, "cancelled": True}
            assert result.text == "Over."
            slow.open.set()
            assert (await service.create_session("x", model="slow")).text == "first second"
            assert slow.loop_was is loop

    on_asyncio(main)


def test_cancelling_a_call_leaves_its_turn() -> None:
    """A cancelled caller goes on at once; the turn runs on and is stored, as on trio."""

    async def main() -> None:
        gate = Gate()
        async with warren.aio.open_supervisor(ECHO, providers={"gate": gate}) as service:
            session_id = (await service.create_session(None, model="gate")).session_id
            turn = asyncio.create_task(service.start_turn(session_id, "go"))
            await gate.began.wait()
            with pytest.raises(SessionBusyError):
                await service.start_turn(session_id, "again")
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await service.wait_turn(session_id)
            gate.open.set()
            assert (await service.wait_turn(session_id)).text == "first second"
            assert not gate.cancelled
            await asyncio.sleep(0)
            assert not service._portal._crossings  # noqa: SLF001 - nothing is left behind

    on_asyncio(main)


def test_interrupting_cancels_the_model() -> None:
    """The interrupt of a turn is a CancelledError in the program's own model."""

    async def main() -> None:
        gate = Gate()
        async with warren.aio.open_supervisor(ECHO, providers={"gate": gate}) as service:
            async with service.stream_session("go", model="gate") as events:
                await gate.began.wait()
                await service.interrupt(events.session_id)
                with pytest.raises(AgentError) as caught:
                    await events.result()
            assert caught.value.cause == "cancelled"
            assert gate.cancelled

    on_asyncio(main)


def test_leaving_a_stream_early_leaves_nothing() -> None:
    """The turn runs on, and no task of the loop and no reader of the log stays behind."""

    async def main() -> None:
        gate = Gate()
        async with warren.aio.open_supervisor(ECHO, providers={"gate": gate}) as service:
            before = asyncio.all_tasks()
            async with service.stream_session("go", model="gate") as events:
                async for each in events:
                    if isinstance(each.event, TextDelta):
                        break
            gate.open.set()
            assert (await service.wait_turn(events.session_id)).text == "first second"
            while (await service.statistics()).subscriptions:  # noqa: ASYNC110 - there is no event of it
                await asyncio.sleep(0.01)
            assert {each for each in asyncio.all_tasks() if not each.done()} == before

    on_asyncio(main)


def test_on_event_and_on_begin_are_called_on_the_loop() -> None:
    """Both run in the loop's thread, all events before the result; one that raises is logged, and the turn goes on."""

    async def main() -> None:
        heard, readers = list[Envelope](), list[EventReader]()
        main_thread = threading.get_ident()

        def hear(envelope: Envelope) -> None:
            assert threading.get_ident() == main_thread
            heard.append(envelope)

        def fails(_envelope: Envelope) -> None:
            raise ValueError

        async with warren.aio.open_supervisor(ECHO) as service:
            result = await service.create_session("one two three", on_event=hear)
            assert heard[-1].seq == result.last_seq
            await service.start_turn(result.session_id, "x", on_event=fails)
            again = await service.start_turn(result.session_id, "y", on_begin=readers.append)
            (reader,) = readers
            seqs = list[int]()
            async for each in reader:
                seqs.append(each.seq)
                if each.seq == again.last_seq:
                    break
            assert seqs[0] == again.first_seq
            further = reader.another()
            reader.close()
            await service.start_turn(result.session_id, "z")
            assert (await anext(further)).seq == seqs[-1] + 1
            further.cursor = 0
            assert (await anext(further)).seq >= 1
            further.close()

    on_asyncio(main)


def test_a_slow_reader_slows_nobody() -> None:
    """A subscriber that does not read holds a page at most, and then gets every event that is kept."""

    async def main() -> None:
        async with warren.aio.open_supervisor(ECHO) as service:
            session_id = (await service.create_session(None)).session_id
            async with service.subscribe(session_id) as events:
                last = 0
                for _ in range(50):
                    last = (await service.start_turn(session_id, "a b c d e f")).last_seq or 0
                held = events.log._page  # type: ignore[attr-defined] # noqa: SLF001 - what the loop holds of it
                assert 0 < len(held) < 50
                seqs = list[int]()
                async for each in events:
                    seqs.append(each.seq)
                    if each.seq == last:
                        break
                assert seqs == sorted(set(seqs))
                assert len(seqs) >= 50 * 5

    on_asyncio(main)


def test_a_subscription_ends_with_the_runtime() -> None:
    """`stop` ends subscriptions and watches, and later calls are refused; the block can still be left."""

    async def main() -> None:
        async with warren.aio.open_supervisor(ECHO) as service:
            session_id = (await service.create_session("a")).session_id
            async with service.subscribe(session_id, after_seq=0) as events, service.watch() as changes:
                await service.start_turn(session_id, "b")
                assert (await anext(aiter(changes))).sessions
                assert service.ready
                await service.stop()
                assert [each.event async for each in events][-1].__class__ is RunCompleted
                async for _ in changes:
                    pass
            with pytest.raises(AgentError) as caught:
                await service.start_turn(session_id, "c")
            assert caught.value.cause == "shutting_down"
        with pytest.raises(AgentError) as caught:
            await service.read(session_id)
        assert caught.value.cause == "shutting_down"
        assert not service.ready

    on_asyncio(main)


def test_leaving_interrupts_turns_and_answers_their_callers() -> None:
    """A task that waits for a turn gets its error, and the thread of the runtime has ended."""

    async def main() -> None:
        gate = Gate()
        async with warren.aio.open_supervisor(ECHO, providers={"gate": gate}) as service:
            turn = asyncio.create_task(service.create_session("x", model="gate"))
            await gate.began.wait()
        with pytest.raises(AgentError) as caught:
            await turn
        assert caught.value.cause == "shutting_down"
        assert [each.name for each in threading.enumerate() if each.name == "warren"] == []

    on_asyncio(main)


def test_a_blocked_loop_does_not_block_the_runtime(tmp_path: Path) -> None:
    """A turn is stored while the program's loop stands still."""

    async def main() -> None:
        config = Config(model="echo", store=StoreConfig(tmp_path))
        async with warren.aio.open_supervisor(config) as service:
            session_id = (await service.create_session(None)).session_id
            turn = asyncio.create_task(service.start_turn(session_id, "x"))
            await asyncio.sleep(0)  # it is on its way
            end = time.monotonic() + 20
            stored = False
            while not stored and time.monotonic() < end:  # this blocks the loop
                time.sleep(0.01)  # noqa: ASYNC251 - the point of the test
                stored = _messages(tmp_path) == 2
            assert stored
            assert (await turn).text == "x"

    on_asyncio(main)


def _messages(folder: Path) -> int:
    import apsw  # noqa: PLC0415 - one test needs it

    (file,) = folder.glob("*.sqlite3")
    found = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY).execute("SELECT count(*) FROM messages").get
    return int(found)


def test_context_variables_are_those_of_the_caller() -> None:
    """Work on trio runs in a copy of the caller's context."""

    async def main() -> None:
        name = contextvars.ContextVar[str]("name")
        name.set("mine")

        async def look() -> str:
            found = name.get()
            name.set("changed")
            return found

        async with warren.aio.open_supervisor(ECHO) as service:
            assert await service._portal.run(look) == "mine"  # noqa: SLF001 - what all calls go through
            assert name.get() == "mine"

    on_asyncio(main)


def test_agents_and_approvals() -> None:
    """An agent's functions run on the loop, its version is that of every process, and its calls wait for approval."""

    async def main() -> None:
        ran = list[object]()

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            ran.append(asyncio.get_running_loop())
            return f"paid {cents}"

        async def instructions(view: SessionView) -> str:
            await asyncio.sleep(0)
            ran.append(asyncio.get_running_loop())
            return f"Pay. {view.state.message_count >= 0}"

        model = ScriptedModel([call("pay", cents=5), say("Paid.")], loop=True)
        desk = Agent("desk", instructions, model=model, tools=[pay], gates=Gates(callback="ask"))
        other = Agent("other", "Wait.", model=Gate(), tools=[pay])
        async with warren.aio.open_supervisor(ECHO, agents=[desk]) as service:
            session = service.session(desk)
            async with session.stream("go") as events:
                async for each in events:
                    if isinstance(each.event, ToolApprovalRequested):
                        await session.approve(each.event.id)
                assert (await events.result()).text == "Paid."
            assert ran == [asyncio.get_running_loop()] * 2
            assert model.requests[0].messages[0].content == "Pay. True"  # type: ignore[union-attr]
            await service.session(other).create()
            with pytest.raises(InvalidParamsError, match="another agent"):
                service.session(desk.with_(instructions="Else."))
            shown = {each.name: each.version for each in (await service.agents()).agents}
            assert shown == {"desk": desk.version, "other": other.version}

    on_asyncio(main)


def test_hooks_run_on_the_loop() -> None:
    """Those of the runtime, an agent and a session surround calls on the program's loop; a denied one does not run."""

    async def main() -> None:
        seen = list[str]()

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            return f"paid {cents}"

        class Watches(Hooks):
            async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
                await asyncio.sleep(0)
                done = await go()
                seen.append(done.text)
                return call.result("seen")

        class Guards(Hooks):
            async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
                await asyncio.sleep(0)
                return call.deny("too much") if call.args["cents"] > 5 else await go()

        model = ScriptedModel([[call("pay", cents=5), call("pay", cents=6)], say("Over.")])
        desk = Agent("desk", "Pay.", model=model, tools=[pay], hooks=[Guards()])
        async with warren.aio.open_supervisor(ECHO, agents=[desk], hooks=[Watches()]) as service:
            assert (await service.create_session("x", agent="desk")).text == "Over."
            assert (await service.agent("desk")).version == desk.version
            assert sorted(seen) == ["not run: too much", "paid 5"], seen
            seen.clear()
            await service.create_session("x", agent="desk", hooks=[Watches()])
            assert sorted(seen) == ["not run: too much", "paid 5", "seen"], "its own is within that of the runtime"
        assert [each.content for each in model.requests[1].messages[-1].results] == ["seen"] * 2  # type: ignore[union-attr]

    on_asyncio(main)


def test_principals_and_figures() -> None:
    """`as_` is the service of another caller; the figures are awaited."""

    async def main() -> None:
        async with warren.aio.open_supervisor(ECHO) as service:
            session_id = (await service.create_session("a")).session_id
            assert service.principal == LOCAL
            other = service.as_(Principal("acme", "desk", LOCAL.scopes))
            with pytest.raises(SessionNotFoundError):
                await other.read(session_id)
            assert (await service.health()).status == "ok"
            assert (await service.statistics()).live_sessions == 1
            assert (await service.metrics()) is not None
            assert (await service.load()) is not None
            assert service.capabilities().session_store is False
            await service.drain()
            with pytest.raises(AgentError) as caught:
                await service.start_turn(session_id, "b")
            assert caught.value.cause == "shutting_down"

    on_asyncio(main)


def test_the_wrong_loop_is_named() -> None:
    """Another loop, no loop, and trio are told from the loop of the service, in the first line, with what to use."""

    async def elsewhere(service: warren.aio.Service) -> None:
        with pytest.raises(RuntimeError, match=r"opened on another event loop.*run_coroutine_threadsafe"):
            await service.read("x")
        with pytest.raises(RuntimeError, match="opened on another event loop"):
            service.session("x")

    async def main() -> None:
        async with warren.aio.open_supervisor(ECHO) as service:
            await asyncio.to_thread(asyncio.run, elsewhere(service))
            await asyncio.to_thread(trio.run, elsewhere, service)

    async def on_trio() -> None:
        async with warren.aio.open_supervisor(ECHO):
            raise AssertionError

    on_asyncio(main)
    with pytest.raises(RuntimeError, match=r"^warren.aio.open_supervisor needs asyncio, and this is trio: use warren."):
        trio.run(on_trio)
    with pytest.raises(RuntimeError, match=r"^warren.aio.open_supervisor needs asyncio, and no loop of asyncio runs"):
        on_trio().send(None)


def test_a_thousand_sessions() -> None:
    """A thousand sessions take turns at once, each with its own answer."""

    async def main() -> None:
        async with warren.aio.open_supervisor(ECHO) as service:

            async def talk(number: int) -> list[TurnResult]:
                first = await service.create_session(f"hello {number}")
                return [first, await service.start_turn(first.session_id, f"again {number}")]

            found = await asyncio.gather(*(talk(number) for number in range(1_000)))
            texts = [[each.text for each in pair] for pair in found]
            assert texts == [[f"hello {number}", f"again {number}"] for number in range(1_000)]

    on_asyncio(main)
