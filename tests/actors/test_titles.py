"""A session's title: the one that its host gave it, or else what its first prompt begins with."""

from pathlib import Path

import pytest
import trio

from tests.support.models import Emit, FunctionModel
from tests.support.runtime import new_session, open_runtime
from warren.actors.turn.outcome import title_of
from warren.base.errors import InvalidParamsError, ProviderError
from warren.models.model import ModelReply, ModelRequest


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("What is this?", "What is this?"),
        ("\n\n  first line \r\nsecond", "first line"),
        ("x" * 81, "x" * 80),
        ("a" * 79 + " b", "a" * 79),
        ("é" * 100, "é" * 80),
    ],
)
def test_it_is_the_first_line(prompt: str, title: str) -> None:
    """Blank lines are passed over, a long one is cut at a character."""
    assert title_of(prompt) == title


@pytest.mark.virtual_time
@pytest.mark.parametrize("stored", [True, False])
async def test_the_first_turn_gives_it(tmp_path: Path, *, stored: bool) -> None:
    """Before there is none; later turns do not change it; `read` and `list` show it, and a restart keeps it."""
    store = tmp_path if stored else None
    async with open_runtime(store=store) as service:
        session = await new_session(service)
        assert (await service.read(session)).state.title is None
        await service.start_turn(session, "one\ntwo")
        await service.start_turn(session, "three")
        assert (await service.read(session)).state.title == "one"
        assert [row.title for row in (await service.list()).sessions] == ["one"]
    if stored:
        async with open_runtime(store=store) as service:
            assert (await service.read(session)).state.title == "one"


async def refuse(_request: ModelRequest, _emit: Emit) -> ModelReply:
    """Be a model that does not answer."""
    raise ProviderError("not today", cause="unauthorized", retryable=False)


@pytest.mark.virtual_time
async def test_a_first_turn_that_fails_gives_it_too(tmp_path: Path) -> None:
    """The first prompt is the title, whatever came of it."""
    async with open_runtime(FunctionModel(refuse), store=tmp_path) as service:
        session = await new_session(service)
        with pytest.raises(ProviderError):
            await service.start_turn(session, "first")
        await service.start_turn(session, "next", model="echo")
        assert (await service.read(session)).state.title == "first"


@pytest.mark.virtual_time
@pytest.mark.parametrize("stored", [True, False])
async def test_a_host_gives_it_another(tmp_path: Path, *, stored: bool) -> None:
    """A title given on creation or later stays, whatever is said; labels and title change together or alone."""
    store = tmp_path if stored else None
    async with open_runtime(store=store) as service:
        session = (await service.create_session("first words", title="Mine")).session_id
        assert (await service.read(session)).state.title == "Mine"
        state = (await service.label(session, {"a": "b"}, title="Other")).state
        assert (state.title, state.labels) == ("Other", {"a": "b"})
        assert (await service.label(session, {"c": "d"})).state.title == "Other"
        assert (await service.label(session, title="Third")).state.labels == {"a": "b", "c": "d"}
        await service.start_turn(session, "more words")
        assert [row.title for row in (await service.list()).sessions] == ["Third"]
        forks = [(await service.fork(session, title=title)).state.title for title in (None, "Fork")]
        assert forks == ["Third", "Fork"]
    if stored:
        async with open_runtime(store=store) as service:
            assert (await service.read(session)).state.title == "Third"


@pytest.mark.virtual_time
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("before", [None, "Before"])
async def test_it_can_be_given_during_a_turn(tmp_path: Path, before: str | None, *, stored: bool) -> None:
    """The end of the turn does not bring the former one back, nor the words of its prompt."""
    running, go_on = trio.Event(), trio.Event()

    async def wait(_request: ModelRequest, _emit: Emit) -> ModelReply:
        running.set()
        await go_on.wait()
        raise ProviderError("not today", cause="unauthorized", retryable=False)

    async def take_turn() -> None:
        with pytest.raises(ProviderError):
            await service.start_turn(session, "words of the prompt")

    async with open_runtime(FunctionModel(wait), store=tmp_path if stored else None) as service:
        session = await new_session(service, title=before)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turn)
            await running.wait()
            assert (await service.label(session, title="During")).state.title == "During"
            go_on.set()
        assert (await service.read(session)).state.title == "During"
    if stored:
        async with open_runtime(store=tmp_path) as service:
            assert (await service.read(session)).state.title == "During"


@pytest.mark.virtual_time
@pytest.mark.parametrize(("title", "problem"), [(" ", "empty"), ("x" * 201, "200 characters"), (5, "a string")])
async def test_a_title_that_cannot_be(title: str, problem: str) -> None:
    """It has to say something, in at most 200 characters; the error names the field."""
    async with open_runtime() as service:
        session = await new_session(service)
        for call in (service.create_session(None, title=title), service.label(session, title=title)):
            with pytest.raises(InvalidParamsError, match=problem) as caught:
                await call
            assert caught.value.path == "$.title"
