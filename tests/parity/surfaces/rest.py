"""REST, and its streams of events beside it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final
from urllib.parse import quote

import attrs
import httpx
import trio

from tests.parity.outcome import Outcome, envelope_of, failed, meaning, told, went_well
from tests.parity.surface import CREATE, EVERYTHING, REGISTER, REPLAY, TURN, Client, Surface, UnsayableError
from tests.parity.surfaces.wire import PAUSE, SLOWLY
from tests.parity.world import World, last_seq
from tests.transport.clients import gateway
from tests.transport.rest.clients import Events, client, events, port_of
from warren.conversation.events import Envelope
from warren.transport.rest.openapi import FIELDS
from warren.transport.rest.routes import ROUTES, WITH_BODY

ROWS: Final = {row.method.name: row for row in ROUTES}


class Rest(Surface):
    """`warren serve`, over plain HTTP."""

    name: ClassVar[str] = "rest"
    column: ClassVar[str | None] = "http"
    can: ClassVar[frozenset[str]] = EVERYTHING - {REGISTER}

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve on a port of its own."""
        async with gateway(world.service) as port, client(port) as http:
            yield _Requests(world, http, slow)


@attrs.define(eq=False)
class _Requests(Client):
    behind: World
    http: httpx.AsyncClient
    slow: bool

    @property
    def world(self) -> World:
        return self.behind

    async def call(self, operation: str, /, **params: Any) -> Outcome:
        session_id = params.get("session_id")
        if operation == TURN and await self._known(session_id):
            return await self._watched(params, str(session_id))
        if operation == REPLAY:
            return await self._subscribe(**params)
        outcome = await self._ask(operation, params)
        if operation == CREATE and params.get("prompt") is not None and (made := _made(outcome)):
            seen = await self.replay(made, 0, last_seq(self.world.service, made))
            return attrs.evolve(outcome, events=seen.events, seqs=seen.seqs)
        return outcome

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        async with events(port_of(self.http), session_id, f"?after_seq={after_seq}") as stream:
            return told(Outcome(), await self._up_to(stream, last))

    async def to_the_end(self, session_id: str, after_seq: int, following: trio.Event) -> Outcome:
        async with events(port_of(self.http), session_id, f"?after_seq={after_seq}") as stream:
            following.set()
            found: list[Envelope] = []
            while (event := await stream.next()) is not None:
                found.append(envelope_of(event.data))
            return told(Outcome(), found)

    async def _watched(self, params: Mapping[str, Any], session_id: str) -> Outcome:
        """Run a turn while its session is watched; what is not in the log when the answer is there comes too late."""
        before = last_seq(self.world.service, session_id)
        async with events(port_of(self.http), session_id) as stream:
            before = max(before, last_seq(self.world.service, session_id))
            outcome = await self._ask(TURN, params)
            last = last_seq(self.world.service, session_id)
            return told(outcome, await self._up_to(stream, last if last > before else 0))

    async def _ask(self, operation: str, params: Mapping[str, Any]) -> Outcome:
        row, rest = ROWS[operation], dict(params)
        path = row.path.format(**{name: _named(rest.pop(name, None)) for name in FIELDS.findall(row.path)})
        if row.verb in WITH_BODY:
            response = await self.http.request(row.verb, path, json=rest)
        else:
            response = await self.http.request(row.verb, path, params=_query(rest))
        if response.is_error:
            return failed(response.json(), response.status_code)
        assert response.status_code == row.status
        return went_well(meaning(operation, response.json()))

    async def _subscribe(self, session_id: object, **params: Any) -> Outcome:
        """Ask for a stream, and leave it where there is one."""
        path = ROWS[REPLAY].path.format(session_id=_named(session_id))
        async with self.http.stream("GET", path, params=_query(params)) as response:
            if response.is_success:
                return Outcome()
            await response.aread()
            return failed(response.json(), response.status_code)

    async def _known(self, session_id: object) -> bool:
        """Tell whether there is a session to watch: an archived one has nothing to show."""
        if not isinstance(session_id, str):
            return False
        response = await self.http.get(f"/sessions/{session_id}")
        return response.is_success and response.json()["state"]["lifecycle"] != "archived"

    async def _up_to(self, stream: Events, last: int) -> list[Envelope]:
        found: list[Envelope] = []
        while last and (not found or found[-1].seq < last):
            event = await stream.next()
            assert event is not None, "the stream ended early"
            found.append(envelope_of(event.data))
            await trio.sleep(PAUSE if self.slow and len(found) < SLOWLY else 0)
        return found


def _named(part: object) -> str:
    if not isinstance(part, str):
        raise UnsayableError("the path has only texts")
    return quote(part, safe="")


def _query(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as a query has them: texts, and objects field by field."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, dict):
            found |= {f"{name}[{key}]": inner for key, inner in value.items()}
        elif value is not None:
            found[name] = value
    return found


def _made(outcome: Outcome) -> str | None:
    session_id = outcome.session_id or outcome.data.get("session_id")
    assert session_id is None or isinstance(session_id, str)
    return session_id
