"""A session's title: what its first prompt begins with, for good."""

from pathlib import Path

import pytest

from tests.support.models import Emit, FunctionModel
from tests.support.runtime import new_session, open_runtime
from warren.actors.outcome import title_of
from warren.errors import ProviderError
from warren.model import ModelReply, ModelRequest


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
    raise ProviderError("not today", cause="refused", retryable=False)


@pytest.mark.virtual_time
async def test_a_first_turn_that_fails_gives_it_too(tmp_path: Path) -> None:
    """What the user asked first is what it is about, whatever came of it."""
    async with open_runtime(FunctionModel(refuse), store=tmp_path) as service:
        session = await new_session(service)
        with pytest.raises(ProviderError):
            await service.start_turn(session, "first")
        await service.start_turn(session, "next", model="echo")
        assert (await service.read(session)).state.title == "first"
