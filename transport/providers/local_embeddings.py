"""Embeddings of a model on this machine, by fastembed in a process of its own. Missing weights refuse the start.

In a process of its own, because a program that has loaded USearch crashes when it loads ONNX Runtime, and a crash of
the model must not end the sessions. The event loop waits neither for the model nor for its imports.
"""

import json
import os
import shlex
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from warren.base.errors import InvalidParamsError, ProviderError
from warren.base.extras import missing
from warren.base.values import define
from warren.transport.providers.local_model import LENGTH

MODEL: Final = "sentence-transformers/all-MiniLM-L6-v2"
"""With the words it finds more than static embeddings do. MRR@10 and hit@5 of the 996 human queries of
benchmarks/memory_quality.py on 1,600 texts: words alone 0.52 and 0.67, this model alone 0.51 and 0.65, both 0.585 and
0.74; WordLlama (256 numbers, 145 texts/s where this has 8) alone 0.39 and 0.52, with words 0.52 and 0.66."""
CACHE_VARIABLE: Final = "FASTEMBED_CACHE_PATH"
"""The variable with the folder of fastembed's weights, for every program of the user."""
LONGEST: Final = 6_000
"""Characters of a text that the model gets. It reads fewer: the first 128 to 512 tokens."""
ANSWER_SECONDS: Final = 60.0
"""The most seconds for one text, which takes some hundredths of a second."""
INHERITED: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_", "PYTHON", "LD_", "DYLD_")
"""Beginnings of the variables that the process gets: API keys are not among them."""
_LIST: Final = 'from fastembed import TextEmbedding as T; print(*(m["model"] for m in T.list_supported_models()))'
_FETCH: Final = 'from fastembed import TextEmbedding; TextEmbedding("{model}", cache_dir="{folder}")'


@define(eq=False)
class LocalEmbedder:
    """An Embedder in a process of its own, which is started anew after it has ended.

    It makes one vector after another, so a search waits for one text of a batch at most. Texts of one call are not put
    together: each would be padded to the longest one.

    Attributes:
        model: the name of the model.
        folder: its files, or a cache of fastembed.
        dimensions: numbers in each vector; 0 until the first start.
    """

    model: str
    folder: Path
    dimensions: int = 0
    _process: trio.Process | None = None
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    @property
    def name(self) -> str:
        """The model, whatever folder it is in."""
        return f"local:{self.model}"

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Return the vectors of texts, in order. It can be cancelled between two texts.

        Raises ProviderError if the process ends, or does not answer within a minute.
        """
        return [await self._vector(text[:LONGEST].encode(errors="replace")) for text in texts]

    async def start(self) -> None:
        """Start the process. Raises InvalidParamsError if it cannot load the model, OSError if it cannot be started."""
        self._process = process = await trio.lowlevel.open_process(
            # Without the working folder on its path: a file there could be taken for a module.
            [sys.executable, "-P", "-m", "warren.transport.providers.local_model", self.model, os.fspath(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name.startswith(INHERITED)},
        )
        try:
            told: dict[str, Any] = json.loads(await _read(process))
        except trio.BrokenResourceError:
            told = {"reason": f"its process ended with exit code {await process.wait()}"}
        if "dimensions" not in told:
            await self.aclose()
            raise InvalidParamsError.at("$.embedder", self._problem(told))
        self.dimensions = told["dimensions"]

    async def aclose(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Shielded: a killed process stays a zombie until somebody waits for it. It ends at once.
            with trio.CancelScope(shield=True):
                await process.wait()
                for stream in (process.stdin, process.stdout):
                    assert stream is not None  # noqa: S101 - it has pipes
                    await stream.aclose()

    async def _vector(self, text: bytes) -> "array[float]":
        failure: Exception | None = None
        async with self._turn:
            # Not cancelled within a text: an answer that nobody takes would be that to the next text.
            with trio.move_on_after(ANSWER_SECONDS, shield=True):
                try:
                    return await self._answer(text)
                except (trio.BrokenResourceError, OSError, ValueError) as exc:
                    failure = exc
            await self.aclose()
        problem = f"the process of the embedder {self.name} has ended or does not answer"
        raise ProviderError(problem, cause="connection", retryable=True) from failure

    async def _answer(self, text: bytes) -> "array[float]":
        if self._process is None:
            await self.start()
        assert self._process is not None  # noqa: S101 - it was started
        assert self._process.stdin is not None  # noqa: S101 - it has a pipe
        await self._process.stdin.send_all(LENGTH.pack(len(text)) + text)
        return array("f", await _read(self._process))

    def _problem(self, told: Mapping[str, Any]) -> str:
        """Return the message for a model that cannot be loaded, with the folder and the command that fetches it."""
        if "unknown" in told:
            return f"fastembed knows no model {self.model!r}; it lists those that it knows: {_shell(_LIST)}"
        fetch = _shell(_FETCH.format(model=self.model, folder=self.folder))
        # In the words of fastembed, for a cache that lacks them.
        lacking = "from any source" in told["reason"]
        problem = f"are not in {self.folder}" if lacking else f"cannot be loaded from {self.folder} ({told['reason']})"
        return f"the weights of {self.model} {problem}; to download them: {fetch}"


@asynccontextmanager
async def open_local(model: str, folder: Path | None, environ: Mapping[str, str]) -> AsyncIterator[LocalEmbedder]:
    """Load a model for a body.

    Args:
        model: its name, one that fastembed knows; an empty one is that of the default model.
        folder: the model's files, or a cache of fastembed; None is the user's cache.
        environ: the variables with the place of the user's cache.

    Raises:
        InvalidParamsError: if the extra is not installed, fastembed does not know the model, or its weights are not in
            the folder or cannot be loaded.
    """
    problem = missing("local-embedder", "the embedder `local` needs")
    if problem is not None:
        raise InvalidParamsError.at("$.embedder", problem)
    embedder = LocalEmbedder(model or MODEL, (folder or _cache(environ)).expanduser().absolute())
    try:
        await embedder.start()
        yield embedder
    finally:
        await embedder.aclose()


def _cache(environ: Mapping[str, str]) -> Path:
    if own := environ.get(CACHE_VARIABLE):
        return Path(own)
    caches = environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "fastembed"


async def _read(process: trio.Process) -> bytes:
    """Return the next answer of the process. Raises BrokenResourceError if it has ended."""
    return await _exactly(process, *LENGTH.unpack(await _exactly(process, LENGTH.size)))


async def _exactly(process: trio.Process, count: int) -> bytes:
    assert process.stdout is not None  # noqa: S101 - it has a pipe
    data = b""
    while len(data) < count:
        part = await process.stdout.receive_some(count - len(data))
        if not part:
            raise trio.BrokenResourceError
        data += part
    return data


def _shell(program: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
