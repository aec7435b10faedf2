"""Every route, over real sockets, against the real runtime."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.support.fake_service import FakeService, hit
from tests.support.models import Puppet
from tests.transport.rest.clients import create, problem, rest
from tests.transport.rest.serving import served
from warren import Gates, Switches
from warren.base.errors import ProviderError
from warren.calls.facade import Health
from warren.conversation.options import CompactionConfig
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.models.tools import tool
from warren.reports.health import Status
from warren.settings.config import Config, Limits
from warren.transport.embed import open_supervisor
from warren.transport.providers.scripted import ScriptedCall, ScriptedModel, ScriptedStep
from warren.transport.rest.routes import ROUTES


class Broken:
    """A model that is down."""

    async def complete(self, _request: ModelRequest, _emit: Callable[[Piece], None]) -> ModelReply:
        raise ProviderError("down", retryable=False)


class Ill(FakeService):
    """A runtime that does as well as it is told to."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self.status: Status = status

    def health(self) -> Health:
        return attrs.evolve(super().health(), status=self.status)


async def test_a_session_from_its_creation_to_its_end(tmp_path: Path) -> None:
    """A session is created, goes on, is listed, read, archived and deleted, each by its own route."""
    async with served(tmp_path) as (_, http):
        created = await http.post("/sessions", json={"prompt": "hello there", "labels": {"team": "red"}})
        assert created.status_code == 201
        result = created.json()
        assert (result["text"], result["turns"]) == ("hello there", 1)
        here = created.headers["location"]
        assert here == f"/sessions/{result['session_id']}"
        again = await http.post(f"{here}/messages", json={"prompt": "and again"})
        assert (again.status_code, again.json()["text"]) == (200, "and again")
        view = (await http.get(here)).json()
        assert (view["state"]["message_count"], view["state"]["last_assistant_text"]) == (4, "and again")
        history = (await http.get(f"{here}/history", params={"offset": 2, "limit": 1})).json()
        assert (history["total"], [entry["position"] for entry in history["messages"]]) == (4, [2])
        for wanted, found in (({"labels[team]": "red"}, 1), ({"labels[team]": "blue"}, 0), ({"limit": 1}, 1)):
            assert len((await http.get("/sessions", params=wanted)).json()["sessions"]) == found
        assert (await http.post(f"{here}/archive")).json() == {"archived": True}
        assert (await http.get("/sessions")).json() == {"sessions": []}
        assert len((await http.get("/sessions?include_archived=true")).json()["sessions"]) == 1
        assert problem(await http.post(f"{here}/messages", json={"prompt": "x"}))[:2] == (409, "SESSION_NOT_FOUND")
        assert (await http.delete(here)).json() == {"deleted": True}
        assert problem(await http.get(here))[:2] == (404, "SESSION_NOT_FOUND")


async def test_a_stored_session_is_resumed(tmp_path: Path) -> None:
    """A session of an earlier runtime can be loaded and goes on under its id."""
    async with served(tmp_path) as (_, http):
        session_id = await create(http, prompt="before")
    async with served(tmp_path) as (_, http):
        assert (await http.get(f"/sessions/{session_id}")).json()["state"]["lifecycle"] == "stored"
        assert (await http.post(f"/sessions/{session_id}/resume")).json()["state"]["lifecycle"] == "live"
        after = await http.post(f"/sessions/{session_id}/messages", json={"prompt": "after", "session_id": session_id})
        assert after.json()["session_id"] == session_id
        assert (await http.get(f"/sessions/{session_id}/history")).json()["total"] == 4


async def test_a_busy_session_says_so_and_can_be_interrupted() -> None:
    """A second turn gets 409 at once; an interrupt ends the first one, whose caller gets 409 too."""
    puppet, answers = Puppet(), []

    async def ask(http: httpx.AsyncClient, session_id: str) -> None:
        answers.append(await http.post(f"/sessions/{session_id}/messages", json={"prompt": "go"}))

    async with served(puppet=puppet) as (_, http):
        session_id = await create(http, model="puppet")
        here = f"/sessions/{session_id}"
        assert problem(await http.post(f"{here}/interrupt"))[:2] == (409, "SESSION_NOT_RUNNING")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, http, session_id)
            await puppet.reached(1)
            busy = await http.post(f"{here}/messages", json={"prompt": "me too"})
            assert problem(busy)[:2] == (409, "SESSION_BUSY")
            assert busy.json()["retryable"] is True
            assert (await http.post(f"{here}/interrupt")).json() == {"interrupted": True}
        assert problem(answers[0])[:2] == (409, "AGENT_ERROR")
        assert answers[0].json()["details"]["cause"] == "cancelled"


async def test_what_is_off_says_so() -> None:
    """Without its capability a route gets 501 and the capability's code, or 405 if its path has other methods."""
    async with served() as (_, http):
        session_id = await create(http)
        shown = (await http.get("/capabilities")).json()
        kinds = shown.pop("tools")
        assert shown == {"session_store": False, "session_compaction": False, "memory_store": False}
        assert (kinds["memory"], kinds["shell"]) == ("unavailable", "unavailable")
        search = {"query": "x", "scope": "project"}
        deletion = await http.delete(f"/sessions/{session_id}")
        for response, status, code in (
            (await http.post(f"/sessions/{session_id}/compact"), 501, "SESSION_COMPACTION_DISABLED"),
            (deletion, 405, "SESSION_PERSISTENCE_DISABLED"),
            (await http.post("/memory/search", json=search), 501, "SESSION_MEMORY_DISABLED"),
        ):
            assert problem(response)[:2] == (status, code)
        assert "DELETE" not in deletion.headers["allow"]


async def test_too_many_turns_at_once() -> None:
    """A turn more than may run gets 503, and when to ask again."""
    puppet = Puppet()
    async with served(config=Config(limits=Limits(max_sessions=1)), puppet=puppet) as (_, http):
        first, second = await create(http, model="puppet"), await create(http, model="puppet")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: http.post(f"/sessions/{first}/messages", json={"prompt": "go"}))
            await puppet.reached(1)
            full = await http.post(f"/sessions/{second}/messages", json={"prompt": "go"})
            assert problem(full)[:2] == (503, "CAPACITY_EXCEEDED")
            assert full.headers["retry-after"] == "1"
            puppet.say("done", None)


async def test_a_providers_wish_to_wait_is_passed_on() -> None:
    """`Retry-After` is the provider's, in whole seconds; without one there is none."""
    service = FakeService(on_read=ProviderError("slow down", retry_after=2.5, retryable=True))
    async with rest(service) as http:
        slow = await http.get("/sessions/s1")
        assert problem(slow)[:2] == (502, "PROVIDER_ERROR")
        assert slow.headers["retry-after"] == "3"
        service.on_read = ProviderError("down")
        assert "retry-after" not in (await http.get("/sessions/s1")).headers


async def test_a_failed_first_turn_names_its_session() -> None:
    """The error of a first turn has the session's id, and the session is there."""
    async with served(broken=Broken()) as (_, http):
        failed = await http.post("/sessions", json={"prompt": "hello", "model": "broken"})
        assert problem(failed)[:2] == (502, "PROVIDER_ERROR")
        assert (await http.get(f"/sessions/{failed.json()['session_id']}")).status_code == 200


async def test_the_memory_is_searched() -> None:
    """A search is a POST with the parameters of the method, and gets the hits."""
    service = FakeService(hits=[hit("they met", 0.5, "s1", 3)])
    async with rest(service) as http:
        found = await http.post("/memory/search", json={"query": "met", "scope": "project", "limit": 2})
        assert found.json()["hits"][0]["content"] == "they met"
        assert service.calls[-1][1]["limit"] == 2


async def test_health_and_settings() -> None:
    """Probes get the runtime's health, people its settings, and HEAD the head alone."""
    async with served() as (_, http):
        assert (await http.get("/health")).json()["status"] != "failed"
        assert (await http.get("/config")).json()["gateway"]["max_http"] == 250
        head = await http.head("/health")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0


async def test_health_that_has_failed_is_told_by_the_status() -> None:
    """A probe that looks at nothing else learns it; what is merely degraded is no reason to take a server out."""
    told: tuple[tuple[Status, int], ...] = (("ok", 200), ("degraded", 200), ("failed", 503))
    for health, status in told:
        async with rest(Ill(health)) as http:
            for verb in ("GET", "HEAD"):
                assert (await http.request(verb, "/health")).status_code == status
            assert (await http.get("/health")).json()["status"] == health


async def test_a_bug_is_an_error_without_its_text() -> None:
    """An unexpected error is 500, says nothing of itself, and the next request is served."""
    service = FakeService(on_read=RuntimeError("secret detail"))
    async with rest(service) as http:
        broken = await http.get("/sessions/s1")
        assert problem(broken)[:2] == (500, "AGENT_ERROR")
        assert "secret" not in broken.text
        assert (await http.get("/health")).status_code == 200


async def test_each_route_calls_the_method_it_names() -> None:
    """With its path's parameters alone, every route reaches its method or says which parameter is missing."""
    service = FakeService()
    async with rest(service) as http:
        for row in ROUTES:
            if row.streams:
                continue
            own = {"schedule_id": "s", "trigger_id": "t", "webhook_id": "w"}
            path = row.path.format(session_id="s1", input_id="i1", call_id="c1", to="bob", sha256="0", name="n", **own)
            response = await http.request(row.verb, path)
            if response.status_code == 422:
                assert response.json()["message"].endswith("is required"), row
            else:
                assert problem(response)[1] == "SESSION_NOT_FOUND" if response.is_error else response.json(), row
        called = {name for name, _ in service.calls}
        needing_nothing = {
            "agents",
            "agent",
            "approvals",
            "schedules",
            "change_schedule",
            "delete_schedule",
            "triggers",
            "change_trigger",
            "delete_trigger",
            "webhooks",
            "change_webhook",
            "delete_webhook",
            "deliveries",
            "resend",
            "fork",
            "label",
            "inputs",
            "withdraw",
            "peers",
            "context",
            "audit",
            "attachment",
        }
        reached = {"list", "read", "delete", "interrupt", "archive", "compact", "resume", "history", "wait_turn"}
        assert called == reached | needing_nothing | {"tenants", "usage", "nodes", "drain_node", "check_store"}


async def test_a_call_that_was_decided_is_known() -> None:
    """Another decision comes too late, which is 409 with its cause; 404 is for a call that is not there."""
    steps = ScriptedStep(tool_calls=(ScriptedCall("dig", id="c1"), ScriptedCall("dig", id="c2"))), ScriptedStep("Dug.")

    @tool(category="shell")
    def dig() -> str:
        """Dig."""
        return "a hole"

    config = Config(provider="model", model="scripted", switches=Switches(shell="enable"), gates=Gates(shell="ask"))
    runtime = open_supervisor(config, tools=[dig], providers={"model": ScriptedModel(steps)}, environ={})
    async with runtime as service, rest(service) as http, trio.open_nursery() as nursery:
        here = (await http.post("/sessions", json={"prompt": None})).headers["location"]
        nursery.start_soon(partial(http.post, f"{here}/messages", json={"prompt": "Dig."}))
        while len((await http.get("/approvals")).json()["approvals"]) < 2:  # noqa: ASYNC110 - a list has no event
            await trio.sleep(0.01)
        for decision, status in (("deny", 200), ("deny", 200), ("allow", 409)):
            response = await http.post(f"{here}/approvals/c1", json={"decision": decision})
            assert response.status_code == status
        assert response.json()["details"] == {"path": "$.call_id", "cause": "settled"}
        assert (await http.post(f"{here}/approvals/c3", json={"decision": "allow"})).status_code == 404
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_done_is_no_failure_of_the_server() -> None:
    """A conversation with nothing to shorten, and an answer that does not fit its schema, are 409."""
    async with served(config=Config(compaction=CompactionConfig())) as (_, http):
        here = (await http.post("/sessions", json={"prompt": "hello"})).headers["location"]
        refused = await http.post(f"{here}/compact")
        assert (refused.status_code, refused.json()["details"]["cause"]) == (409, "compaction_failed")
        unfit = await http.post(f"{here}/messages", json={"prompt": "hello", "output_schema": {"type": "object"}})
        assert (unfit.status_code, unfit.json()["details"]["cause"]) == (409, "structured_output")


@pytest.mark.parametrize("query", ["labels[]=x", "labels[]=x&labels[a]=b", "labels[a]=b&labels[]=x"])
async def test_a_label_in_a_query_has_a_name(query: str) -> None:
    """A list in the form of other programs is refused by the name of the parameter."""
    async with rest(FakeService()) as http:
        assert problem(await http.get(f"/sessions?{query}")) == (422, "INVALID_PARAMS", "$.labels")


async def test_the_status_of_a_refused_parameter() -> None:
    """404 is for a name in the path, 409 for what this server or session does not have, 422 for all else."""
    async with served(config=Config(compaction=CompactionConfig())) as (_, http):
        session_id = await create(http, peer={"name": "ann", "trusts": ["bob"]})
        nameless = await create(http)
        turn = {"prompt": "hi"}
        body: dict[str, Any]
        for path, body, expected in (
            ("/messages", {**turn, "model": "nobody's"}, (409, "$.model")),
            ("/messages", {**turn, "provider": "nobody"}, (409, "$.provider")),
            ("/messages", {**turn, "overrides": {"shell": "enable"}}, (409, "$.overrides.shell")),
            ("/messages", {**turn, "idempotency_key": "k"}, (422, "$.idempotency_key")),
            ("/messages", {**turn, "output_schema": {"type": "bogus"}}, (422, "$.output_schema.type")),
            ("/fork", {"at": 99}, (409, "$.at")),
            ("/peers/bob/messages", {"body": "hi"}, (404, "$.to")),
        ):
            refused = problem(await http.post(f"/sessions/{session_id}{path}", json=body))
            assert (refused[0], refused[2]) == expected, (path, body)
        for body, expected in (
            ({"prompt": None, "tools": ["dig"]}, (409, "$.tools[0]")),
            ({"prompt": None, "peer": {"name": "ann"}}, (409, "$.peer.name")),
            ({"prompt": None, "compaction": {"colour": "red"}}, (422, "$.compaction.colour")),
        ):
            refused = problem(await http.post("/sessions", json=body))
            assert (refused[0], refused[2]) == expected, body
        unnamed = problem(await http.post(f"/sessions/{nameless}/peers/ann/messages", json={"body": "hi"}))
        assert unnamed == (409, "INVALID_PARAMS", "$.session_id")


async def test_a_search_without_a_memory_says_that_there_is_none() -> None:
    """Another fault of the search is not what its caller has to mend first."""
    async with served() as (_, http):
        refused = await http.post("/memory/search", json={"query": "boat"})
        assert problem(refused)[:2] == (501, "SESSION_MEMORY_DISABLED")
