"""Clients that run tools of their own: they go away with a call of one, and come back at another process."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import attrs
import trio

from tests.simulation.network import Call
from tests.simulation.servers import FETCH
from tests.simulation.users import User, passes, shown, tried
from warren.base.errors import SessionNotRunningError, WarrenError
from warren.models.tools import Tool, tool
from warren.transport.client.service import RemoteService, open_links

R = TypeVar("R")
Request = Callable[[RemoteService, Tool], Awaitable[R]]
"""Sends a request of a client with its tool."""
PATIENCE: Final = 5.0
"""Seconds for which a client tries to reach a process before it connects anew."""


@attrs.frozen
class Client:
    """One program that uses the service over connections, and has a tool.

    Attributes:
        user: the user.
        name: its name, which no other client has.
    """

    user: User
    name: str

    async def use(self, request: Request[R], *, changes: bool = False) -> R:
        """Send a request until its end is known; one that has failed leaves nothing of the calls that it has run.

        With `changes` it may change something, so that its errors alone say if it is sent again. Raises WarrenError.
        """
        number = 0
        while True:
            number += 1
            try:
                async with open_links(Call(reach=self.user.world.reach, ping_interval=1.0), PATIENCE) as opened:
                    return await request(RemoteService(*opened), self._tool(number))
            except WarrenError as exc:
                if not passes(exc, changes=changes):
                    raise
                self.user.note(f"{self.name} {number} is told {shown(exc)}")
            await trio.sleep(self.user.chance.uniform(0.02, 0.2))

    def _tool(self, number: int) -> Tool:
        """Return its tool, as one of its requests has it."""

        @tool(name=FETCH)
        async def fetch(call: str) -> str:
            """Fetch something."""
            world = self.user.world
            world.record.run_by_client(f"{self.name} {number}", self.user.session_id, call)
            await trio.sleep(world.chance.choice((0.0, 0.05, 0.4)))
            return f"{call} is fetched"

        return fetch

    async def turn(self, key: str, prompt: str, **options: Any) -> Any:
        """Run a turn with the tool under a key."""
        options |= {"mode": "queue", "idempotency_key": key}
        return await self.use(
            lambda service, own: service.start_turn(self.user.session_id, prompt, extra_tools=[own], **options),
            changes=True,
        )

    async def wait(self) -> None:
        """Wait for the end of the turn that runs, and run its calls of the tool meanwhile."""
        try:
            await self.use(lambda service, own: service.wait_turn(self.user.session_id, extra_tools=[own]))
        except SessionNotRunningError:
            pass
        except WarrenError as exc:  # the end of the turn, whichever it was
            self.user.note(f"{self.name} waited for {exc.code} {exc.cause}")


async def leave_and_come_back(user: User, key: str, prompt: str, *, waits: bool) -> Any:
    """Run a turn as a client that goes away after a while, and as another one that comes back."""
    with trio.move_on_after(user.chance.choice((0.1, 0.3, 0.6))):
        await tried(Client(user, f"{user.name} first").turn(key, prompt))
    await trio.sleep(user.chance.choice((0.0, 0.2, 1.0)))
    second = Client(user, f"{user.name} second")
    if waits:
        await second.wait()
    return await second.turn(key, prompt)
