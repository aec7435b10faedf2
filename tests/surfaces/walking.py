"""Walks over all that a gateway serves, from its own tables: a new path, method or tool is walked without an edit."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.surfaces.good_requests import SESSION_ID, params_of
from tests.surfaces.mcp_calls import open_mcp, over_mcp
from tests.transport.clients import connect, gateway
from tests.transport.rest.clients import client
from warren.calls.facade import RuntimeService
from warren.transport.gateway.gateway import MCP_PATH
from warren.transport.http.probes import PATHS
from warren.transport.mcp.http import OF_RESOURCES
from warren.transport.mcp.tools import TOOLS
from warren.transport.rest import routes
from warren.transport.rest.app import rest_app
from warren.transport.rest.completions import COMPLETION_PATH
from warren.transport.rest.oauth import WELL_KNOWN
from warren.transport.rest.routes import WITH_BODY, RestRoute
from warren.transport.rest.site import Site
from warren.transport.rpc.methods import METHODS, Method

VERBS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SILENCE: Final = 0.2
"""Seconds for which a stream is listened to."""
LISTS: Final = "resources/list"
"""The request about resources that names none."""
BY_TOKEN: Final = COMPLETION_PATH.replace("{token}", "x")
"""The path of a result from outside."""
BY_SIGNATURE: Final = ("POST", routes.TRIGGER_PATH.replace("{trigger_id}", "x"))
"""The method and the path of calls of triggers."""
SILENT: Final = "initialized"
"""The method that is a notification."""


@attrs.frozen
class Walk:
    """A gateway that serves.

    Attributes:
        port: its port.
        paths: all its paths but that of the WebSocket, with an `x` for each parameter.
        public: those of them that need no token.
    """

    port: int
    paths: Sequence[str]
    public: frozenset[str]

    def asking(self) -> Iterator[tuple[str, str]]:
        """Yield the HTTP methods and paths of all that needs a token."""
        for path in self.paths:
            if path not in self.public and path != BY_TOKEN:
                verbs = [row.verb for row in routes.ROUTES if filled(row.path) == path]
                for verb in verbs or ("GET", "POST", "DELETE") if path == MCP_PATH else verbs or ("GET",):
                    yield verb, path

    async def open_doors(self, **headers: str) -> set[str]:
        """Return the HTTP methods and paths that let a client in which no token lets in."""
        found = set[str]()
        async with client(self.port, **headers) as http:
            for path in self.paths:
                for verb in VERBS:
                    public = path in self.public and verb in ("GET", "HEAD")
                    # One asks for a token in the path alone, the other for a signature: without it nothing is there.
                    otherwise = path == BY_TOKEN or (verb, path) == BY_SIGNATURE
                    shut = (404, 405) if otherwise else (401, 405)
                    if not public and (await http.request(verb, path)).status_code not in shut:
                        found.add(f"{verb} {path}")
        return found


@attrs.frozen
class Answer:
    """The answer to a call.

    Attributes:
        text: all of it.
        about: whether the call names a session.
    """

    text: str
    about: bool


def filled(path: str, **values: str) -> str:
    """Return a path with its parameters: the given ones, and an `x` for each other one."""
    return re.sub(r"{(\w+)}", lambda found: values.get(found[1], "x"), path)


@asynccontextmanager
async def walk(service: RuntimeService, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Walk]:
    """Serve for a body, and look at what the gateway serves."""
    found = list[tuple[Site, Mapping[str, Any]]]()

    def noted(*args: Any, **parts: Any) -> Any:
        site = rest_app(*args, **parts)
        assert isinstance(site, Site)
        found.append((site, parts["pages"]))
        return site

    monkeypatch.setattr("warren.transport.gateway.gateway.rest_app", noted)
    async with gateway(service, **settings) as port:
        ((site, pages),) = found
        paths = [*map(filled, site.paths), *sorted(PATHS)]
        told = [path for path in paths if path.startswith(WELL_KNOWN)]
        yield Walk(port, paths, frozenset((*pages, *told, *PATHS)))


async def answers(port: int, token: str, session_id: str) -> dict[str, Answer]:
    """Return the answer of each route, method and tool to a client that asks about a session, by their names."""
    bearer, found = f"Bearer {token}", dict[str, Answer]()
    async with client(port, Authorization=bearer) as http:
        for row in routes.ROUTES:
            for verb in ("GET", "HEAD") if row.verb == "GET" else (row.verb,):
                text = await _over_rest(http, verb, row, session_id)
                found[f"{verb} {row.path}"] = Answer(text, _names_session(row.method))
        await open_mcp(http)
        for name, tool in TOOLS.items():
            text = json.dumps(await over_mcp(http, name, params_of(tool.method.name, session_id)))
            found[name] = Answer(text, _names_session(tool.method))
        for name in OF_RESOURCES:
            text = json.dumps(await over_mcp(http, name, {"uri": f"warren://sessions/{session_id}"}))
            found[name] = Answer(text, about=name != LISTS)
    async with connect(port, extra_headers=[(b"Authorization", bearer.encode())]) as program:
        for name, method in METHODS.items():
            if name != SILENT:
                reply = await program.reply(await program.send(name, **params_of(name, session_id)))
                text = json.dumps({key: value for key, value in reply.items() if key != "id"})
                found[name] = Answer(text, _names_session(method))
        with trio.move_on_after(SILENCE):
            while True:
                await program.next()
        told = json.dumps([each for each in program.seen if "method" in each])
        found["notifications"] = Answer(told, about=False)
    return found


def _names_session(method: Method[Any, Any]) -> bool:
    return SESSION_ID in attrs.fields_dict(method.params)


async def _over_rest(http: httpx.AsyncClient, verb: str, row: RestRoute, session_id: str) -> str:
    """Return the status, the headers and the body of an answer; of a stream what comes soon."""
    fields = params_of(row.method.name, session_id)
    path = filled(row.path, **{name: str(value) for name, value in fields.items()})
    body = {"json": {name: value for name, value in fields.items() if f"{{{name}}}" not in row.path}}
    query = {name: value for name, value in body["json"].items() if isinstance(value, str | int)}
    sent: dict[str, Any] = body if row.verb in WITH_BODY else {"params": query}
    parts = list[bytes]()
    async with http.stream(verb, path, **sent) as answer:
        with trio.move_on_after(SILENCE if row.streams else 30):
            parts.extend([part async for part in answer.aiter_raw()])
    shown = {name: value for name, value in answer.headers.items() if name != "date"}
    return json.dumps([HTTPStatus(answer.status_code).phrase, shown, b"".join(parts).decode(errors="replace")])
