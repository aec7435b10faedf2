"""The audit of a gateway: each action of each client has one entry, which its tenant alone reads."""

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import apsw
import httpx
import pytest
import trio

from tests.transport.clients import gateway, knock
from tests.transport.http.tokens import SCOPES, listed
from tests.transport.rest.clients import client, create
from warren.actors.resources.audit import MOST_OF_SOURCE
from warren.base.errors import PermissionDeniedError
from warren.base.principals import SCOPES as ALL
from warren.base.principals import Principal
from warren.base.tenant_limits import TokenLimits
from warren.calls.facade import RuntimeService
from warren.client import connect
from warren.models.tools import tool
from warren.settings.config import Config, StoreConfig
from warren.storage.sqlite.file import FILE_NAME
from warren.transport.access.token_list import read_tokens, without_tokens
from warren.transport.embed import open_supervisor

CALL: Final = {"tool_calls": [{"id": "call-1", "name": "launch", "args": {"what": "it"}}]}
SAID: Final = [CALL, {"text": "done"}]
TOKENS: Final = "tokens.toml"
OLD_ENTRY: Final = """
    INSERT INTO audit (at, tenant, who, action, outcome, details)
    VALUES (1700000000000000, 'acme', ?, 'archive', 'done', '{}')
"""
"""An entry as a release has stored it that told no kinds of actors."""
ROOT: Final = Principal("ops", "root", frozenset(ALL))


@tool(category="shell")
async def launch(what: str) -> str:
    """Launch something."""
    return what


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[RuntimeService, int]]:
    """Serve a store, whose model calls a tool that needs approval, to the clients of a list of tokens."""
    script = folder / "script.json"
    script.write_text(json.dumps({"steps": SAID, "loop": True}))
    config = Config(store=StoreConfig(folder / "store"), model=f"scripted:{script}")
    async with (
        open_supervisor(config, tools=[launch], environ={}) as service,
        gateway(service, token_file=folder / TOKENS) as port,
    ):
        yield service, port


def bearer(token: str) -> dict[str, str]:
    """Return the header with a token."""
    return {"Authorization": f"Bearer {token}"}


async def audit(http: httpx.AsyncClient, **query: str) -> list[dict[str, Any]]:
    """Return the entries that a client may read."""
    answer = await http.get("/audit", params=query)
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["entries"]
    return entries


async def decided(http: httpx.AsyncClient, session_id: str, marker: str, decision: str | None) -> None:
    """Run a turn whose call is allowed, or denied, or which is interrupted as it waits."""

    async def run() -> None:
        await http.post(f"/sessions/{session_id}/messages", json={"prompt": f"go {marker}"})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        path = f"/sessions/{session_id}"
        while not (pending := (await http.get(path)).json()["state"].get("pending_approvals")):  # noqa: ASYNC110 - REST
            await trio.sleep(0.005)
        if decision is None:
            assert (await http.post(f"{path}/interrupt")).status_code == 200
        else:
            said = {"decision": decision, "reason": f"because {marker}"}
            done = await http.post(f"{path}/approvals/{pending[0]['call_id']}", json=said)
            assert done.status_code == 200, done.text


async def everything(http: httpx.AsyncClient, marker: str) -> tuple[list[tuple[str, str | None]], set[str]]:
    """Do all that is audited; return the expected entries."""
    options = {"overrides": {"shell": "enable"}, "approvals": {"shell": "ask"}, "title": marker}
    made = await http.post("/sessions", json={"prompt": None, "system_prompt": marker, **options})
    one = made.json()["session_id"]
    await decided(http, one, marker, "allow")
    await decided(http, one, marker, "deny")
    await decided(http, one, marker, None)
    fork = (await http.post(f"/sessions/{one}/fork", json={"title": marker})).json()["state"]["session_id"]
    await http.post(f"/sessions/{one}/context", json={"text": marker})
    for _ in range(2):  # the second one changes nothing
        assert (await http.post(f"/sessions/{fork}/archive")).status_code == 200
        assert (await http.delete(f"/sessions/{one}")).status_code == 200
    return [
        *(("create", one), ("approve", one), ("deny", one), ("interrupt", one)),
        *(("fork", fork), ("archive", fork), ("delete", one)),
    ], {one, fork}


async def test_each_action_has_one_entry_of_its_tenant(tmp_path: Path) -> None:
    """With the right who, where and what, in any order of two tenants; no text of a prompt or an answer is in it."""
    tokens = {name: listed(tmp_path / TOKENS, name=f"n{name}", tenant=name) for name in ("acme", "bolt")}
    marker = secrets.token_hex(8)
    sessions = dict[str, set[str]]()
    async with serving(tmp_path) as (_, port):
        async with trio.open_nursery() as nursery:

            async def act(tenant: str) -> None:
                async with client(port, **bearer(tokens[tenant])) as http:
                    expected, sessions[tenant] = await everything(http, marker)
                    entries = await audit(http)
                    assert [(each["action"], each["session_id"]) for each in entries] == expected
                    placed = {(each["who"], each["tenant"], each["source"], each["outcome"]) for each in entries}
                    assert placed == {(f"n{tenant}", tenant, "127.0.0.1", "done")}
                    assert [each["details"] for each in entries[1:3]] == [{"call": "call-1"}, {"call": "call-1-2"}]

            for tenant in tokens:
                nursery.start_soon(act, tenant)
        for tenant, others in (("acme", "bolt"), ("bolt", "acme")):
            async with client(port, **bearer(tokens[tenant])) as http:
                assert not any(each["session_id"] in sessions[others] for each in await audit(http))
                for foreign in sessions[others]:
                    assert await audit(http, session_id=foreign) == []
            async with connect(f"ws://127.0.0.1:{port}", token=tokens[tenant]) as service:
                page = await service.audit(action="create")
                assert [each.tenant for each in page.entries] == [tenant]
                with pytest.raises(PermissionDeniedError):
                    await service.audit(all_tenants=True)
                (refused,) = (await service.audit(action="read")).entries
                assert (refused.outcome, refused.tenant) == ("refused", tenant)
    db = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
    dump = repr(db.execute("SELECT * FROM audit").fetchall())
    db.close()
    assert marker not in dump
    assert not any(token in dump for token in tokens.values())


async def test_a_name_may_look_like_an_operator(tmp_path: Path) -> None:
    """A token of the tenant whose name has the form of an operator's, and that of the retention, are told apart."""
    path = tmp_path / TOKENS
    operator = listed(path, name="ci", scopes=(*SCOPES, "tenant:admin"))
    names = {
        name: listed(path, name=name, tenant="acme") for name in ("default/ci", "retention", "operator default/ci")
    }
    async with serving(tmp_path) as (_, port):
        for token, more in (*((each, {}) for each in names.values()), (operator, {"Warren-Tenant": "acme"})):
            async with client(port, **bearer(token), **more) as http:
                await create(http)
        async with client(port, **bearer(names["retention"])) as http:
            found = [(each["who"], each.get("by")) for each in await audit(http, action="create")]
            reads = [(each["who"], each.get("by")) for each in await audit(http, action="read")]
    assert found == [*((name, "principal") for name in names), ("default/ci", "operator")]
    assert reads == [("default/ci", "operator")]
    db = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
    for who in ("ann", "default/ci", "retention", ""):
        db.execute(OLD_ENTRY, (who,))  # as an earlier release has stored it
    db.close()
    async with serving(tmp_path) as (_, port), client(port, **bearer(names["retention"])) as http:
        old = [(each["who"], each.get("by")) for each in await audit(http, action="archive")]
    assert old == [("ann", "principal"), ("default/ci", None), ("retention", None), ("", None)]


async def test_refused_calls_and_logins(tmp_path: Path) -> None:
    """A call without its scope is an entry of its tenant; a client that is not let in is one of none, or of its own."""
    path = tmp_path / TOKENS
    reader = listed(path, name="reader", tenant="acme", scopes=("session:read",))
    keeper = listed(path, name="keeper", tenant="acme", scopes=SCOPES)
    admin = listed(path, name="root", tenant="ops", scopes=tuple(each for each in ALL if each != "node"))
    late = listed(path, name="late", tenant="acme", expires=datetime(2020, 1, 1, tzinfo=UTC))
    async with serving(tmp_path) as (_, port):
        async with client(port, **bearer(reader)) as http:
            assert (await http.post("/sessions", json={"prompt": "hi"})).status_code == 403
            assert (await http.delete("/sessions/" + "x" * 500)).status_code == 403
            assert (await http.post("/sessions/x/approvals/c", json={"decision": "deny"})).status_code == 403
            assert (await http.get("/audit")).status_code == 403
        for _ in range(20):
            assert await knock(port, Authorization="Bearer wrong") == 401
        async with client(port, **bearer(late)) as http:
            assert (await http.get("/sessions")).status_code == 401
        async with client(port, **bearer(keeper)) as http:
            entries = await audit(http)
            assert {each["outcome"] for each in entries} == {"refused"}
            assert [(each["action"], each["who"]) for each in entries] == [
                *(("create", "reader"), ("delete", "reader"), ("deny", "reader"), ("read", "reader"), ("login", "late"))
            ]
            assert entries[1]["session_id"] == "x" * 100
            assert entries[4]["details"] == {"reason": "expired_token"}
        async with client(port, **bearer(admin)) as http:
            (*logins, _) = await audit(http, all_tenants="true", action="login")
            assert [each["tenant"] for each in logins] == [None] * MOST_OF_SOURCE
            assert {each["details"]["reason"] for each in logins} == {"bad_token"}
            await audit(http, all_tenants="true")  # within a minute of the other one
            assert [(each["action"], each["details"]) for each in await audit(http)] == [("read", {"tenant": "*"})]
            for _ in range(3):
                assert (await http.get("/sessions", headers={"Warren-Tenant": "acme"})).status_code == 200
        async with client(port, **bearer(keeper)) as http:
            assert (await http.get("/sessions", headers={"Warren-Tenant": "ops"})).status_code == 403
            reads = await audit(http, action="read")
            assert [(each["who"], each["outcome"], each["details"]) for each in reads] == [
                ("reader", "refused", {}),
                ("ops/root", "done", {}),
                ("keeper", "refused", {"tenant": "ops"}),
            ]
    async with open_supervisor(Config(store=StoreConfig(tmp_path / "store")), environ={}) as service:
        page = await service.as_(ROOT).audit(all_tenants=True, action="login")
        suppressed = [each.details["suppressed"] for each in page.entries if "suppressed" in each.details]
        assert suppressed == [str(20 - MOST_OF_SOURCE)]


async def test_tokens_that_come_and_go(tmp_path: Path) -> None:
    """The server notes them when it reads the file again, by their names and without their hashes."""
    path = tmp_path / TOKENS
    listed(path, name="first", tenant="acme", scopes=SCOPES)
    admin = listed(path, name="root", tenant="acme", scopes=SCOPES)
    async with serving(tmp_path) as (_, port), client(port, **bearer(admin)) as http:
        data = path.read_bytes()
        gone = [each.hash for each in read_tokens(data) if each.name == "first"]
        path.with_suffix(".new").write_bytes(without_tokens(data, gone))
        path.with_suffix(".new").replace(path)
        limits = TokenLimits(tokens_per_day=200, sessions=5)
        listed(path, name="second", tenant="acme", scopes=("session:read",), limits=limits)
        with trio.fail_after(5):
            while len(entries := await audit(http)) < 2:  # noqa: ASYNC110 - REST
                await trio.sleep(0.05)
        found = {(each["action"], each["details"]["name"]): each for each in entries}
        assert found.keys() == {("token_removed", "first"), ("token_added", "second")}
        assert found["token_added", "second"]["details"]["scopes"] == "session:read"
        assert found["token_added", "second"]["details"]["limits"] == "sessions=5 tokens_per_day=200"
        assert "limits" not in found["token_removed", "first"]["details"]
        path.with_suffix(".new").write_text(path.read_text().replace("per_day = 200", "per_day = 100000"))
        path.with_suffix(".new").replace(path)
        with trio.fail_after(5):
            while not (changed := await audit(http, action="token_changed")):  # noqa: ASYNC110 - REST
                await trio.sleep(0.05)
        assert changed[0]["details"]["limits"] == "sessions=5 tokens_per_day=100000"
        assert not re.search(r"sha256|[0-9a-f]{32}", repr(entries))
