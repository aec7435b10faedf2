"""The service of a test: opened in the loop of the test, with the model that the test has made."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import attrs
import trio
from trio.testing import MockClock

from warren.base.errors import ProviderError
from warren.base.values import define, frozen
from warren.calls.facade import RuntimeService
from warren.conversation.attachments import ANY_KIND, Kind
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.models.tools import Loop
from warren.settings.config import Config
from warren.transport.embed import open_host, open_supervisor
from warren.transport.providers.scripted import ScriptedModel, ScriptedStep

if TYPE_CHECKING:
    from warren.transport.aio import Service

MODEL: Final = "scripted"
"""The name of the model of a test."""
NO_SCRIPT: Final = "the test has no script yet: call scripted(say(…)) before the turn begins"


@define(eq=False)
class ScriptedFixture:
    """The fixture `scripted`: a call makes a model, and sessions that name no model get the newest one.

    Attributes:
        newest: the newest model; None before the first.
    """

    kinds: ClassVar[frozenset[Kind]] = ANY_KIND
    loop: ClassVar[Loop] = "trio"
    newest: ScriptedModel | None = None

    def __call__(
        self, *steps: ScriptedStep | Sequence[ScriptedStep], loop: bool = False, strict: bool = False
    ) -> ScriptedModel:
        """Return a model with these steps; see `ScriptedModel`."""
        self.newest = ScriptedModel(steps, loop=loop, strict=strict)
        return self.newest

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Play the newest model; see `warren.models.model.Provider`. Raises ProviderError if there is none."""
        if self.newest is None:
            raise ProviderError(NO_SCRIPT, cause="script_ended", retryable=False)
        return await self.newest.complete(request, emit)


@frozen
class NotOpen:
    """The value of `warren_service` until the test runs: no fixture can hold a service open in the loop of the test.

    Attributes:
        options: the arguments of `open_supervisor`.
        model: the model of sessions that name none.
    """

    options: Mapping[str, Any] = attrs.field(repr=False)
    model: ScriptedFixture = attrs.field(repr=False)

    def __getattr__(self, name: str) -> Any:
        """Refuse to be used as a service. Whatever looks for other attributes finds none."""
        if not hasattr(RuntimeService, name):
            raise AttributeError(name)
        raise RuntimeError(
            f"warren_service.{name}: the service is open within tests that are `async def`, and nowhere else"
        )

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[RuntimeService | Service]":
        """Open the service for a body: on trio, or for asyncio that of `warren.aio`."""
        options = dict(self.options)
        for name in options.keys() - signature(open_supervisor).parameters.keys():
            raise TypeError(f"warren_options has {name!r}, which is no argument of open_supervisor")
        config = options.pop("config", None) or Config()
        if config.model == Config().model and config.provider is None:
            config = attrs.evolve(config, model=MODEL)
        providers = {MODEL: self.model, **(options.pop("providers", None) or {})}
        environ = options.pop("environ", {})  # no test pays for a model because the shell has a key
        if trio.lowlevel.in_trio_run():
            async with open_host(config, providers=providers, environ=environ, clock=_clock(), **options) as hosted:
                yield hosted.service
            return
        from warren.transport.aio import open_supervisor as open_aio  # noqa: PLC0415 - for tests on asyncio alone

        async with open_aio(config, providers=providers, environ=environ, **options) as service:
            yield service


def _clock() -> Callable[[], datetime]:
    """Return the clock of what is due: from now on it goes as the clock of the test, which may jump."""
    began, now = trio.current_time(), datetime.now(UTC)
    return lambda: now + timedelta(seconds=trio.current_time() - began)


def opened_later(options: Mapping[str, Any], model: ScriptedFixture) -> RuntimeService:
    """Return what stands for a service until the test runs."""
    return cast(RuntimeService, NotOpen(options, model))


def run(test: Callable[[], Awaitable[None]], *, virtual: bool) -> None:
    """Run a test on trio, if asked for on a clock that jumps to the next deadline whenever every task waits."""
    if not virtual:
        trio.run(test)
        return
    # Its first import is done in a thread, and such a clock does not wait for threads.
    import warren.structured.check  # noqa: F401, PLC0415 - see above

    trio.run(test, clock=MockClock(autojump_threshold=0))
