"""The embedder for a name; remote ones are imported on first use."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from warren.errors import InvalidParamsError
from warren.memory import Embedder, MemoryConfig
from warren.transport.memories import known_dimensions

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
    memory: MemoryConfig | None = None,
    client: "httpx.AsyncClient | None" = None,
) -> AsyncIterator[Embedder | None]:
    """Open the embedder of a name for a body, None for a built-in one.

    `openai:MODEL` is a model of the server at OPENAI_BASE_URL, with the key in OPENAI_API_KEY. It is called once for
    the length of its vectors. If the server does not answer and the memory has vectors of the model, their length is
    used: until the server answers, new texts are refused and searches match words only.

    Args:
        name: the name; None is the default embedder.
        environ: the variables with the key and the address.
        memory: the settings of the memory.
        client: replaces the HTTP client; the caller closes it.

    Raises:
        InvalidParamsError: if the name is unknown.
        ProviderError: if the server does not answer and the length of the vectors is unknown.
    """
    if name is None or name in BUILT_IN:
        yield None
        return
    model = name.removeprefix(OPENAI_PREFIX)
    if model in ("", name):
        every = ", ".join(BUILT_IN)
        raise InvalidParamsError(
            f"$.embedder: {name!r} is unknown; there are {every} and {OPENAI_PREFIX}MODEL", path="$.embedder"
        )
    from warren.transport.providers import embeddings  # noqa: PLC0415 - httpx is imported on first use

    async def known() -> int:
        return 0 if memory is None else await known_dimensions(memory, name)

    async with embeddings.open_remote(model, environ, client, known=known) as embedder:
        yield embedder
