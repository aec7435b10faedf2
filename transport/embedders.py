"""Which embedder a name means; the remote ones are imported when they are needed first."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warren.errors import InvalidParamsError
from warren.memory import Embedder

if TYPE_CHECKING:
    import httpx

BM25: Final = "bm25"
BUILT_IN: Final = (BM25, "bag-of-words")
"""Embedders of the memory itself, which need no model."""
OPENAI_PREFIX: Final = "openai:"


@asynccontextmanager
async def open_embedder(
    name: str | None,
    environ: Mapping[str, str],
    *,
    memory: Path | None = None,
    client: "httpx.AsyncClient | None" = None,
) -> AsyncIterator[Embedder | None]:
    """Open the embedder of a name, None for a built-in one; its connections are closed on leaving.

    `openai:MODEL` is a model of the server at OPENAI_BASE_URL, with the key in OPENAI_API_KEY. It is called once, to
    learn how many numbers its vectors have. Where the server does not answer and the memory in the folder `memory` has
    vectors of the model, they tell: then what is to be remembered is refused until the server is back, and searches go
    by words. `client` replaces the HTTP client and stays the caller's to close.

    Raises InvalidParamsError for an unknown name, ProviderError where the server does not answer and nothing tells.
    """
    if name is None or name in BUILT_IN:
        yield None
        return
    model = name.removeprefix(OPENAI_PREFIX)
    if model in ("", name):
        known = ", ".join(BUILT_IN)
        raise InvalidParamsError(
            f"$.embedder: {name!r} is unknown; there are {known} and {OPENAI_PREFIX}MODEL", path="$.embedder"
        )
    from warren.transport.providers import embeddings  # noqa: PLC0415 - httpx is loaded when it is needed first

    length = partial(_known_dimensions, name, memory)
    async with embeddings.open_remote(model, environ, client, known=length) as embedder:
        yield embedder


def _known_dimensions(name: str, memory: Path | None) -> int:
    if memory is None:
        return 0
    from warren.storage.memory.file import known_dimensions  # noqa: PLC0415 - it has an extra of its own

    return known_dimensions(memory, name)
