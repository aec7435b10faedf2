"""A model whose key is missing is refused before anything is stored."""

import pytest

from tests.transport.cli.process import Cli
from warren.base.errors import ProviderError
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor

MISSING = (
    "anthropic: ANTHROPIC_API_KEY is not set; `warren models` lists the models that can be called [PROVIDER_ERROR]"
)
MODEL = "claude-sonnet-5"


def test_a_missing_key_leaves_no_session(cli: Cli) -> None:
    """Each attempt says which variable is missing and which models there are; no session is left behind."""
    for args in (["run", "hello"], ["chat"], ["run", "--key", "k", "hello"], ["run", "hello", "--stream"]):
        ended = cli.run(*args, "-m", MODEL, stdin=b"hello\n" if args[0] == "chat" else b"")
        assert (ended.code, ended.out, ended.err) == (1, "", f"Error: {MISSING}\n")
    assert cli.run("sessions", "list").out == ""


def test_a_missing_key_leaves_a_session_as_it_was(cli: Cli) -> None:
    """A turn and a compaction of a session that exists are refused, and its history stays."""
    cli.run("run", "hello", "-m", "echo")
    before = cli.run("sessions", "show", "last").out
    for args in (["resume", "last", "again", "-m", MODEL], ["resume", "last", "again", "-p", "openai", "-m", "gpt-5"]):
        ended = cli.run(*args)
        assert ended.code == 1
        assert "_API_KEY is not set; `warren models`" in ended.err
    assert cli.run("sessions", "show", "last").out == before


async def test_a_program_is_refused_alike(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service refuses the first turn and later ones; a session without a turn waits for a model."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    async with open_supervisor(Config(store=StoreConfig(str(tmp_path)), model=MODEL)) as service:
        with pytest.raises(ProviderError, match="is not set"):
            await service.create_session("hello")
        assert (await service.list()).sessions == ()
        empty = await service.create_session(None)
        with pytest.raises(ProviderError, match="is not set"):
            await service.start_turn(empty.session_id, "hello")
        assert (await service.read(empty.session_id)).state.message_count == 0
        assert (await service.start_turn(empty.session_id, "hello", model="echo")).text == "hello"
