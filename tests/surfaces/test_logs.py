"""The log of a server, while one tenant tries every method of every surface on a session of another one."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.surfaces.good_requests import params_of
from tests.surfaces.mcp_calls import open_mcp, over_mcp
from tests.transport.clients import connect, gateway
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import listed
from tests.transport.rest.clients import client
from warren.transport.cli.terminal.logs import JsonLines
from warren.transport.mcp.tools import TOOLS
from warren.transport.rest.routes import ROUTES, WITH_BODY, RestRoute
from warren.transport.rpc.methods import METHODS

OF_CLIENTS: Final = ("httpx", "httpcore")
"""The loggers of the clients, which are in the same process here."""
GOES_ON: Final = "session/watch"
"""The answer over REST has no end."""
OURS: Final = {"prompt": "my boat is called Ottilie", "title": "the harbour", "labels": {"port": "Rostock"}}
THEIRS: Final = {"prompt": "where is Wilhelmine"}


class Lines(logging.Handler):
    """The lines of a log, each as a server writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(OF_CLIENTS):
            self.lines.append(self.format(record))


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield the lines that are logged in a body: those of `--verbose`, and all that Warren itself may ever write."""
    root, own, lines = logging.getLogger(), logging.getLogger("warren"), Lines()
    before = root.level, own.level
    root.addHandler(lines)
    root.setLevel(logging.INFO)
    own.setLevel(logging.DEBUG)
    try:
        yield lines.lines
    finally:
        root.setLevel(before[0])
        own.setLevel(before[1])
        root.removeHandler(lines)


def _params(method: str, session_id: str) -> dict[str, Any]:
    params = params_of(method)
    changed = {"session_id": session_id, **THEIRS}
    return {name: changed.get(name, value) for name, value in params.items()}


async def _over_rest(http: httpx.AsyncClient, row: RestRoute, session_id: str) -> int:
    fields, path = _params(row.method.name, session_id), row.path
    for name in re.findall(r"{(\w+)}", path):
        path = path.replace(f"{{{name}}}", str(fields.pop(name)))
    body: dict[str, Any] = {"json": fields} if row.verb in WITH_BODY else {}
    return (await http.request(row.verb, path, **body)).status_code


async def test_nothing_of_a_tenant_is_logged(tmp_path: Path) -> None:
    """No line has the id of the session, its title, a label or a prompt, whatever another tenant tries on it."""
    path = tmp_path / "tokens.toml"
    ours, theirs = (f"Bearer {listed(path, tenant=tenant)}" for tenant in ("ours", "theirs"))
    with logged() as lines:
        async with (
            runtime(tmp_path / "store") as service,
            gateway(service, token_file=path) as port,
            client(port, Authorization=ours) as own,
            client(port, Authorization=theirs) as http,
            connect(port, extra_headers=[(b"Authorization", theirs.encode())]) as program,
        ):
            made = (await own.post("/sessions", json={**OURS, "model": "echo"})).json()["session_id"]
            statuses = {
                row.method.name: await _over_rest(http, row, made) for row in ROUTES if row.method.name != GOES_ON
            }
            assert (statuses["session/read"], statuses["session/create"]) == (404, 201)
            for method in METHODS:
                await program.reply(await program.send(method, **_params(method, made)))
            await open_mcp(http)
            for tool in TOOLS.values():
                await over_mcp(http, tool.name, _params(tool.method.name, made))
            for asked in ("resources/read", "resources/subscribe"):
                assert "error" in await over_mcp(http, asked, {"uri": f"warren://sessions/{made}"})
            assert (await own.get(f"/sessions/{made}")).json()["state"]["title"] == OURS["title"]
    assert lines
    found = {
        word: [line for line in lines if word in line] for word in (made, "Ottilie", "harbour", "Rostock", "Wilhelmine")
    }
    assert found == {word: [] for word in found}
