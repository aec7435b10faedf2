"""Which embedder a name means; the remote ones are imported when they are needed first."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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
    name: str | None, environ: Mapping[str, str], *, client: "httpx.AsyncClient | None" = None
) -> AsyncIterator[Embedder | None]:
    """Open the embedder of a name, None for a built-in one; its connections are closed on leaving.

    `openai:MODEL` is a model of the server at OPENAI_BASE_URL, with the key in OPENAI_API_KEY. It is called once, to
    learn how many numbers its vectors have. `client` replaces the HTTP client and stays the caller's to close.

    Raises InvalidParamsError for an unknown name, ProviderError where the server does not answer.
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

    async with embeddings.open_remote(model, environ, client) as embedder:
        yield embedder
