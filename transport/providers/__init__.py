"""Model providers: `echo` and `scripted` offline, those of vendors and of named servers over one shared HTTP client.

May import the packages below transport, and nothing else of `warren.transport`.
"""

import os
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from warren.base.values import define
from warren.models.model import Provider
from warren.settings.config import ModelServer
from warren.transport.providers.echo import EchoProvider
from warren.transport.providers.registry import KnownModel, ModelRegistry, default_model, known_models
from warren.transport.providers.settings import Bounds, endpoints

if TYPE_CHECKING:
    import httpx

    from warren.transport.providers.scripted import (
        Script,
        ScriptedCall,
        ScriptedError,
        ScriptedModel,
        ScriptedStep,
        load_script,
    )

__all__ = [
    "Bounds",
    "EchoProvider",
    "KnownModel",
    "Script",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedModel",
    "ScriptedStep",
    "default_model",
    "known_models",
    "load_script",
    "open_providers",
]

CLOSE_SECONDS: Final = 2.0
_SCRIPTED: Final = frozenset(
    {"Script", "ScriptedCall", "ScriptedError", "ScriptedModel", "ScriptedStep", "load_script"}
)
"""The names of the model by a script, which are loaded on first use: few programs have one."""


def __getattr__(name: str) -> object:
    if name in _SCRIPTED:
        from warren.transport.providers import scripted  # noqa: PLC0415 - see above

        found: object = getattr(scripted, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@asynccontextmanager
async def open_providers(
    environ: Mapping[str, str] | None = None,
    *,
    bounds: Bounds | None = None,
    client: "httpx.AsyncClient | None" = None,
    extra: Mapping[str, Provider] | None = None,
    servers: Iterable[ModelServer] = (),
    scripts: Collection[str] | None = None,
) -> AsyncIterator[ModelRegistry]:
    """Open the model providers for a body; on leaving, their shared HTTP client is closed.

    Args:
        environ: the variables with keys and addresses (OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY,
            ANTHROPIC_BASE_URL, GEMINI_API_KEY or GOOGLE_API_KEY, GOOGLE_GEMINI_BASE_URL), read now; None is the
            environment of the process.
        bounds: the time for which a server may be silent, and the bytes that it may send.
        client: replaces the shared HTTP client; the caller closes it.
        extra: more providers by name; they take precedence over all others.
        servers: more servers, each under a name of its own, or in place of a vendor's.
        scripts: the files that may be named as scripts; None lets any file be named.

    Trap: a call that still runs when the body is left fails. Leave this context after the runtime that uses it.
    """
    connection = _Connection(client)
    environ = dict(os.environ if environ is None else environ)
    try:
        targets = endpoints(environ, servers)
        yield ModelRegistry(targets, dict(extra or {}), bounds or Bounds(), connection.get, scripts)
    finally:
        await connection.close()


@define
class _Connection:
    """The shared HTTP client, made on first use: importing httpx and reading certificates take time."""

    given: "httpx.AsyncClient | None"
    made: "httpx.AsyncClient | None" = None
    closed: bool = False

    def get(self) -> "httpx.AsyncClient":
        if self.closed:
            raise RuntimeError("these providers are closed: open_providers() was left")
        if self.given is not None:
            return self.given
        if self.made is None:
            from warren.transport.providers.http.client import new_client  # noqa: PLC0415 - as the docstring says

            self.made = new_client()
        return self.made

    async def close(self) -> None:
        self.closed = True
        if self.made is not None:
            # Shielded: the runtime may end by cancellation. Bounded: a server may keep a TLS goodbye waiting.
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.made.aclose()
