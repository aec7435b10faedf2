"""Where the instructions of a session stand: those that a function makes, and those that take their place."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.storage.samples import NOW
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import open_runtime, transcript
from warren.agents.agent import Agent
from warren.base.errors import AgentError
from warren.base.retention import Retention
from warren.conversation.agents import AgentRef
from warren.conversation.messages import Message, SystemMessage, UserMessage
from warren.conversation.options import CompactionConfig
from warren.conversation.views import SessionView
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.maintenance.retention import plan, prune

pytestmark = pytest.mark.virtual_time


class Seen:
    """A model that keeps what it was sent, and answers with the instructions."""

    def __init__(self) -> None:
        self.contexts: list[Sequence[Message]] = []

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Answer with what it was told to be."""
        await trio.lowlevel.checkpoint()
        self.contexts.append(messages := [*request.messages])
        if not request.tools and any("summary" in str(each) for each in messages[-1:]):
            return reply("A summary.")
        first = messages[0]
        return reply(first.content if isinstance(first, SystemMessage) else "nobody")


def told(made: Callable[[SessionView], str | Awaitable[str]], **options: Any) -> Agent:
    """Return an agent with instructions of a function."""
    return Agent("desk", made, **options)


def soon(made: Callable[[], str]) -> Callable[[SessionView], Awaitable[str]]:
    """Return instructions of a function: in virtual time none may be in a thread."""

    async def instructions(_view: SessionView) -> str:
        await trio.lowlevel.checkpoint()
        return made()

    return instructions


async def each_turn(view: SessionView) -> str:
    """Return instructions that change with each turn."""
    await trio.lowlevel.checkpoint()
    return f"Turn {view.state.message_count // 3 + 1}."


def opened(path: Path | None, model: Seen, *agents: Agent, **options: Any) -> Any:
    """Open a runtime that has some agents."""
    return open_runtime(
        FunctionModel(model.answer), store=path, config=Config(agents=agents, compaction=CompactionConfig()), **options
    )


@pytest.mark.parametrize("durable", [False, True])
async def test_a_function_instructs_each_turn(tmp_path: Path, *, durable: bool) -> None:
    """The newest instructions are at the head of the context, once; the history has all, in their places."""
    path, model, desk = tmp_path if durable else None, Seen(), told(each_turn)
    async with opened(path, model, desk) as service:
        made = await service.create_session("a", agent="desk")
        session_id = made.session_id
        texts = [made.text, *[(await service.start_turn(session_id, each)).text for each in ("b", "c")]]
        assert texts == ["Turn 1.", "Turn 2.", "Turn 3."]
    if durable:
        async with opened(path, model, desk) as service:
            assert (await service.start_turn(session_id, "d")).text == "Turn 4."
            roles = [type(each).__name__[:4] for each in await transcript(service, session_id)]
            assert roles == ["User", "Syst", "Assi"] * 4
            said = (await service.context(session_id)).messages
            assert [(each.position, type(each.message).__name__[:4]) for each in said[:3]] == [
                (10, "Syst"),
                (0, "User"),
                (2, "Assi"),
            ]
    last = model.contexts[-1]
    assert [each.content for each in last if isinstance(each, SystemMessage)] == [f"Turn {len(model.contexts)}."]
    assert [each.content for each in last if isinstance(each, UserMessage)] == ["a", "b", "c", "d"][: len(last) // 2]


async def test_instructions_that_stay_the_same_are_written_once(tmp_path: Path) -> None:
    """So the history has no row too many, and the provider's cache of prompts holds."""

    async def same(_view: SessionView) -> str:
        await trio.sleep(1)
        return "Be brief."

    model = Seen()
    async with opened(tmp_path, model, told(same)) as service:
        session_id = (await service.create_session("a", agent="desk")).session_id
    async with opened(tmp_path, model, told(same)) as service:
        assert (await service.start_turn(session_id, "b")).text == "Be brief."
        found = await transcript(service, session_id)
    assert [type(each).__name__[:4] for each in found] == ["User", "Syst", "Assi", "User", "Assi"]
    assert found[1] == SystemMessage("Be brief.", AgentRef("desk", told(same).version))


@pytest.mark.parametrize("how", ["raises", "hangs", "number", "surrogate"])
async def test_a_function_that_fails_ends_the_turn(how: str) -> None:
    """With the cause `agent`; the next turn asks it again."""
    works = [False, True]

    async def made(_view: SessionView) -> Any:
        if works.pop(0):
            return "Well."
        if how == "hangs":
            await trio.sleep_forever()
        if how == "raises":
            raise ValueError("no such customer")
        return 5 if how == "number" else "\ud800"

    async with opened(None, Seen(), told(made)) as service:
        session_id = (await service.create_session(None, agent="desk")).session_id
        began = trio.current_time()
        with pytest.raises(AgentError) as caught:
            await service.start_turn(session_id, "a")
        assert (caught.value.cause, trio.current_time() - began <= 10) == ("agent", True)
        assert {"raises": "no such customer", "hangs": "10 s", "number": "int", "surrogate": "surrogate"}[how] in str(
            caught.value
        )
        assert (await service.start_turn(session_id, "b")).text == "Well."


async def test_a_fork_has_the_instructions_of_its_place(tmp_path: Path) -> None:
    """Before a change it has those of before, behind it the new ones."""
    model, now = Seen(), ["One."]
    desk = told(soon(lambda: now[0]))
    async with opened(tmp_path, model, desk) as service:
        session_id = (await service.create_session("a", agent="desk")).session_id
        for now[0], prompt in (("Two.", "b"), ("Three.", "c")):
            await service.start_turn(session_id, prompt)
        for at, text in ((0, None), (3, "One."), (4, "One."), (5, "Two."), (7, "Two."), (8, "Three."), (9, "Three.")):
            fork = (await service.fork(session_id, at=at)).state
            messages = (await service.context(fork.session_id)).messages
            first = messages[0].message if messages else None
            assert (first.content if isinstance(first, SystemMessage) else None) == text
            assert (await service.start_turn(fork.session_id, "x")).text == "Three."
        assert examine(StoreConfig(tmp_path), full=True).findings == ()


async def test_instructions_outlive_compaction_and_retention(tmp_path: Path) -> None:
    """A summary stands for the messages around them; retention leaves all that a fork may need."""
    model, desk = Seen(), told(soon(lambda: f"Since {len(model.contexts)}." if len(model.contexts) < 3 else "Last."))
    async with opened(tmp_path, model, desk) as service:
        session_id = (await service.create_session("a" * 9000, agent="desk")).session_id
        for each in "bcdef":
            await service.start_turn(session_id, each * 9000)
        await service.compact(session_id)
        assert (await service.start_turn(session_id, "g")).text == "Last."
    done = prune(StoreConfig(tmp_path), plan(StoreConfig(tmp_path), Retention(superseded=1.0), NOW + timedelta(99999)))
    assert done.messages > 0
    assert examine(StoreConfig(tmp_path), full=True).findings == ()
    async with opened(tmp_path, model, desk) as service:
        assert (await service.start_turn(session_id, "h")).text == "Last."
        page = await service.history(session_id)
        texts = [each.message.content for each in page.messages if isinstance(each.message, SystemMessage)]
        assert texts == ["Since 0.", "Since 1.", "Since 2.", "Last."]
        fork = (await service.fork(session_id, at=page.kept_from + 2)).state
        assert (await service.start_turn(fork.session_id, "i")).text == "Last."
        assert (await service.context(session_id)).summary is not None
    assert examine(StoreConfig(tmp_path), full=True).findings == ()


def test_its_version_is_that_of_the_function() -> None:
    """Its name counts, and its code does not; an agent with a text has the version that it always had."""
    assert told(each_turn).spec.made_by == f"{__name__}:each_turn"
    assert told(each_turn).pin.code == ("the instructions",)
    assert "made_by" not in Agent("desk", "Be brief.").spec.body
    assert told(each_turn).version != told(lambda _view: "").version
