"""A runtime on a virtual clock, and a store whose clock the test puts forward and back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import open_runtime
from warren.actors.calls.service import Service
from warren.models.model import ModelReply, ModelRequest


@attrs.define(eq=False)
class World:
    """A store through several lives of its process.

    Attributes:
        ahead: seconds by which the clock of the store was put forward.
        takes: seconds that the model takes for an answer.
    """

    folder: Path
    ahead: float = 1_800_000_000.0
    takes: float = 0.0

    def clock(self) -> float:
        """Return the time of the store."""
        return self.ahead + trio.current_time()

    def now(self) -> datetime:
        """Return the same, as services have it."""
        return datetime.fromtimestamp(self.clock(), UTC)

    @asynccontextmanager
    async def life(self, **options: Any) -> AsyncIterator[Service]:
        """Run the process."""

        async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
            await trio.sleep(self.takes)
            return reply("done")

        async with open_runtime(FunctionModel(answer), store=self.folder, clock=self.clock, **options) as service:
            yield service
