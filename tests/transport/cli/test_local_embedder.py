"""`--embedder local` as a user meets it: real processes, real weights, and the start that is refused without them."""

import contextlib
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

from tests.support.local_model import cache_in, needs_weights, weights_in
from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.remembering import lines
from tests.transport.cli.serving import connected, serve
from warren.base.errors import InvalidParamsError, ProviderError
from warren.conversation.memory import MemoryConfig
from warren.transport.embedders import open_embedder

MODEL: Final = "sentence-transformers/all-MiniLM-L6-v2"
MOTOR: Final = "the motor of the automobile hums"
TEXTS: Final = lines({"content": "my cat sleeps on the sofa"}, {"content": MOTOR}, {"content": "bake the bread"})


def hits(cli: Cli, query: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """Return the hits of a search by the command line."""
    found: list[dict[str, Any]] = cli.run("memory", "search", query, "--output", "json", env=env).data["hits"]
    return found


@needs_weights
def test_a_text_is_found_without_a_word_in_common(cli: Cli, tmp_path: Path) -> None:
    """Weights in the user's cache are found by one word, and a text by what it means; without them words decide."""
    local = {"WARREN_EMBEDDER": "local", "FASTEMBED_CACHE_PATH": str(cache_in(tmp_path / "cache"))}
    added = cli.run("memory", "add", stdin=TEXTS, env=local)
    assert (added.out, added.err) == ("added 3 of 3\n", "")
    best = hits(cli, "noise from a car engine", local)[0]
    assert (best["content"], best["parts"]["share"]) == (MOTOR, 0.5)
    stats = cli.run("memory", "stats", "--output", "json", env=local).data
    assert (stats["embedder"], stats["dimensions"], stats["indexed"]) == (f"local:{MODEL}", 384, 3)
    assert stats["weighs"] == "words_and_vectors"
    assert hits(cli, "noise from a car engine", {}) == []
    assert cli.run("memory", "stats", "--output", "json").data["weighs"] == "words"


@needs_weights
async def test_a_gateway_with_weights_in_a_folder(cli: Cli, tmp_path: Path) -> None:
    """A gateway loads the weights of --embedder-folder, makes vectors of texts that had none, and says so in health."""
    cli.run("memory", "add", stdin=TEXTS)
    folder = weights_in(tmp_path / "weights")
    running, url = serve(cli, "--memory", "--embedder", "local", "--embedder-folder", str(folder))
    async with connected(url) as client:
        while (await client.call("health"))["memory"].get("behind"):  # noqa: ASYNC110 - of another process
            await trio.sleep(0.05)
        assert (await client.call("health"))["memory"]["weighs"] == "words_and_vectors"
        found = (await client.call("memory/search", query="noise from a car engine", scope="project"))["hits"]
        assert found[0]["content"] == MOTOR
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


@needs_weights
async def test_a_model_whose_process_is_killed(tmp_path: Path) -> None:
    """The call that it was killed in can be tried again: the next one has a new process, and equal vectors."""
    config = MemoryConfig(embedder="local", embedder_folder=weights_in(tmp_path / "weights"))
    async with open_embedder("local", {}, memory=config) as embedder:
        assert embedder is not None
        before = np.array(await embedder.embed([MOTOR, "x " * 100_000, ""]))
        assert np.allclose(np.linalg.norm(before, axis=1), 1, atol=1e-3)
        running = child()
        assert running is not None
        os.kill(running, signal.SIGKILL)
        with pytest.raises(ProviderError, match="has ended or does not answer") as raised:
            await embedder.embed([MOTOR])
        assert raised.value.retryable
        assert np.allclose(await embedder.embed([MOTOR]), before[:1])
        with trio.move_on_after(0.01) as scope:
            await embedder.embed([MOTOR] * 100_000)
        assert scope.cancelled_caught
        assert np.allclose(await embedder.embed([MOTOR]), before[:1])
        assert child() not in (None, running)
    assert child() is None


def child() -> int | None:
    """Return the id of the process of a local model that this process has started, None if there is none."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and b"local_model" in (path / "cmdline").read_bytes():
                return int(path.name)
    return None


def _nothing(folder: Path) -> None:
    folder.mkdir()


def _damaged(folder: Path) -> None:
    folder.mkdir()
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(b"{}")


@pytest.mark.parametrize(
    ("make", "problem"),
    [(lambda _: None, "are not in"), (_nothing, "are not in"), (_damaged, "cannot be loaded from")],
    ids=["no folder", "nothing there", "damaged"],
)
def test_missing_weights_refuse_the_start(cli: Cli, make: Callable[[Path], None], problem: str) -> None:
    """Every command that needs the weights ends at once, and names the folder and the command that fetches them."""
    folder = cli.folder / "weights"
    make(folder)
    env = {"WARREN_EMBEDDER": "local", "WARREN_EMBEDDER_FOLDER": "weights"}
    for command in (("memory", "add"), ("serve", "--memory", "--port", "0"), ("run", "--memory", "-m", "echo", "hi")):
        said = one_line(cli.run(*command, stdin=TEXTS if command[0] == "memory" else b"", env=env), 2)
        assert f"embedder: the weights of {MODEL} {problem} {folder}" in said
        fetch = shlex.split(said.partition("to download them: ")[2])
        assert fetch[2] == f'from fastembed import TextEmbedding; TextEmbedding("{MODEL}", cache_dir="{folder}")'


async def test_the_places_of_the_cache(tmp_path: Path) -> None:
    """Without a folder the user's cache is looked at: fastembed's own variable, else the cache folder of the system."""
    for environ, place in (
        ({"FASTEMBED_CACHE_PATH": str(tmp_path / "a"), "XDG_CACHE_HOME": str(tmp_path / "b")}, tmp_path / "a"),
        ({"XDG_CACHE_HOME": str(tmp_path / "b")}, tmp_path / "b" / "fastembed"),
    ):
        with pytest.raises(InvalidParamsError, match=rf"are not in {place};") as raised:
            async with open_embedder("local", environ):
                pass
        assert raised.value.path == "$.embedder"


async def test_an_unknown_model_is_named() -> None:
    """A model that fastembed does not know is bad input, and the message tells how to list those it knows."""
    with pytest.raises(InvalidParamsError, match=r"fastembed knows no model 'nobody/nothing'.*list_supported_models"):
        async with open_embedder("local:nobody/nothing", {}):
            pass
