"""The embedder for a name; the models are imported on first use."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from warren.base.errors import InvalidParamsError
from warren.conversation.memory import Embedder, MemoryConfig
from warren.transport.stores import known_dimensions

if TYPE_CHECKING:
    import httpx

BM25: Final = "bm25"
BUILT_IN: Final = (BM25, "bag-of-words")
"""Embedders of the memory itself, which need no model."""
LOCAL: Final = "local"
"""A model of meaning on this machine."""
OPENAI_PREFIX: Final = "openai:"
KNOWN: Final = f"{', '.join(BUILT_IN)}, {LOCAL}, {LOCAL}:MODEL and {OPENAI_PREFIX}MODEL"
"""All names, for people."""


def is_known(name: str) -> bool:
    """Tell whether a name is one of an embedder; whether there is such a model shows when it is opened."""
    prefix, _, model = name.partition(":")
    return name in (*BUILT_IN, LOCAL) or (prefix + ":" in (OPENAI_PREFIX, f"{LOCAL}:") and bool(model.strip()))


@asynccontextmanager
async def open_embedder(
    name: str | None,
    environ: Mapping[str, str],
    *,
    memory: MemoryConfig | None = None,
    client: "httpx.AsyncClient | None" = None,
) -> AsyncIterator[Embedder | None]:
    """Open the embedder of a name for a body, None for a built-in one.

    `local` is a model of meaning in a process of its own, and `local:MODEL` another one that fastembed knows. Its
    weights are in the folder `memory.embedder_folder`, or in the user's cache: nothing is downloaded.

    `openai:MODEL` is a model of the server at OPENAI_BASE_URL, with the key in OPENAI_API_KEY. It is called once for
    the length of its vectors. If the server does not answer and the memory has vectors of the model, their length is
    used: until the server answers, texts get no vector and searches match words only.

    Args:
        name: the name; None is the default embedder.
        environ: the variables with the key and the address, and with the place of the user's cache.
        memory: the settings of the memory.
        client: replaces the HTTP client; the caller closes it.

    Raises:
        InvalidParamsError: if the name is unknown, or the weights of a local model are missing.
        ProviderError: if the server does not answer and the length of the vectors is unknown.
    """
    if name is None or name in BUILT_IN:
        yield None
        return
    if not is_known(name):
        raise InvalidParamsError.at("$.embedder", f"{name!r} is unknown; there are {KNOWN}")
    if not name.startswith(OPENAI_PREFIX):
        from warren.transport.providers import local_embeddings  # noqa: PLC0415 - few memories have a local model

        folder = None if memory is None else memory.embedder_folder
        async with local_embeddings.open_local(name.partition(":")[2], folder, environ) as local:
            yield local
        return
    from warren.transport.providers import embeddings  # noqa: PLC0415 - httpx is imported on first use

    async def known() -> int:
        return 0 if memory is None else await known_dimensions(memory, name)

    async with embeddings.open_remote(name.removeprefix(OPENAI_PREFIX), environ, client, known=known) as embedder:
        yield embedder
