"""Two principals at one runtime: what each may do, and that it finds nothing of the other's tenant."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.service.principals import ACME, METHODS, OF_RUNTIMES, OF_SESSIONS, SCOPE_OF, SCOPED, called, fields
from tests.support.runtime import open_runtime
from warren.actors.calls.handlers import HANDLERS
from warren.actors.calls.service import Service
from warren.base.errors import ErrorCode, PermissionDeniedError, WarrenError
from warren.base.ids import new_session_id
from warren.base.principals import LOCAL, OWN_SCOPES, Principal
from warren.calls.facade import CALLS, RuntimeService
from warren.conversation.peers import Peer

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=["in memory", "live", "stored"])
def place(request: pytest.FixtureRequest) -> str:
    """The place of the session of a test."""
    return str(request.param)


@asynccontextmanager
async def standing(place: str, folder: Path) -> AsyncIterator[tuple[Service, str]]:
    """Open a runtime with a session of the default tenant."""
    store = None if place == "in memory" else folder
    async with open_runtime(store=store) as service:
        mine = (await service.create_session("hi", peer=Peer("scout", ("somebody",)))).session_id
        await service.inject_context(mine, "a note")
        if place != "stored":
            yield service, mine
            return
    async with open_runtime(store=store) as service:
        yield service, mine


async def contents(service: RuntimeService, session_id: str) -> list[object]:
    """Return all that a reader of a session sees."""
    async with service.subscribe(session_id, after_seq=0) as reader:
        events = [await anext(reader)]
    listed = await service.list(include_archived=True)
    return [listed, await service.history(session_id), await service.inputs(session_id), events]


def test_every_call_has_its_method_and_its_handler() -> None:
    """A call that is a method of the service can be carried out by this process."""
    assert set(HANDLERS) == set(CALLS.values())
    assert sorted(SCOPE_OF) == METHODS
    assert OF_RUNTIMES == [
        "as_",
        "bearer",
        "drain",
        "health",
        "load",
        "metrics",
        "note",
        "opened",
        "principal",
        "ready",
        "statistics",
        "stop",
    ]


async def test_a_missing_scope_is_refused_before_anything_is_looked_up(place: str, tmp_path: Path) -> None:
    """The error names the scope, and is the same for a session that is there and one that is not."""
    async with standing(place, tmp_path) as (service, mine):
        for method in SCOPED:
            scope = SCOPE_OF[method]
            assert scope is not None
            without = service.as_(attrs.evolve(LOCAL, scopes=LOCAL.scopes - {scope}))
            for session_id in (mine, new_session_id()):
                error = await called(without, method, session_id)
                assert isinstance(error, PermissionDeniedError), method
                assert error.body() == {
                    "code": "PERMISSION_DENIED",
                    "message": f"this needs the scope {scope}",
                    "retryable": False,
                    "details": {"scope": scope},
                }


@pytest.mark.parametrize("method", SCOPED)
async def test_its_scope_is_enough(tmp_path: Path, method: str) -> None:
    """A method needs no scope but its own."""
    scope = SCOPE_OF[method]
    assert scope is not None
    async with standing("in memory", tmp_path) as (service, mine):
        error = await called(service.as_(attrs.evolve(LOCAL, scopes=frozenset({scope}))), method, mine)
        assert error is None or error.code != ErrorCode.PERMISSION_DENIED


async def test_a_session_of_another_tenant_is_unknown(place: str, tmp_path: Path) -> None:
    """Each method says of it, to the word, what it says of an id that nobody has, and changes nothing."""
    async with standing(place, tmp_path) as (service, mine):
        for method in OF_SESSIONS:
            foreign, unknown = service.as_(ACME), new_session_id()
            found = fields(await called(foreign, method, mine), mine)
            assert found == fields(await called(foreign, method, unknown), unknown), method
        if place == "stored":
            assert service.statistics().live_sessions == 0
        views = [await contents(each, mine) for each in (service, service)]
        assert views[0] == views[1]
        assert len(views[0][0].sessions) == 1  # type: ignore[attr-defined]


async def test_a_deleted_session_of_another_tenant_is_unknown(tmp_path: Path) -> None:
    """Also to `delete`, which does nothing for the tenant that has deleted it."""
    async with standing("live", tmp_path) as (service, mine):
        await service.delete(mine)
        await service.delete(mine)
        foreign, unknown = service.as_(ACME), new_session_id()
        for method in OF_SESSIONS:
            found = fields(await called(foreign, method, mine), mine)
            assert found == fields(await called(foreign, method, unknown), unknown), method


async def test_sessions_have_the_tenant_and_the_name_of_their_creator(place: str, tmp_path: Path) -> None:
    """Views, lists and forks show both; names among peers and idempotency keys are those of one tenant."""
    async with standing(place, tmp_path) as (service, mine):
        acme, bob = service.as_(ACME), service.as_(Principal("acme", "bob"))
        options: Any = {"peer": Peer("scout", ("somebody",)), "idempotency_key": "once"}
        one = (await acme.create_session("hi", **options)).session_id
        assert (await bob.create_session("hi", **options)).session_id == one
        other = (await service.create_session("hi", idempotency_key="once")).session_id
        assert len({one, other, mine}) == 3
        fork = (await bob.fork(one)).state
        assert (fork.tenant, fork.owner) == ("acme", "bob")
        state = (await bob.read(one)).state
        assert (state.tenant, state.owner) == ("acme", "ann")
        listed = {each.session_id: (each.tenant, each.owner) for each in (await acme.list()).sessions}
        assert listed == {one: ("acme", "ann"), fork.session_id: ("acme", "bob")}
        assert {each.tenant for each in (await service.list()).sessions} == {"default"}


async def test_peers_of_two_tenants_do_not_reach_each_other(place: str, tmp_path: Path) -> None:
    """A name leads to the session of the sender's tenant."""
    async with standing(place, tmp_path) as (service, mine):
        acme = service.as_(ACME)
        sender = (await acme.create_session(None, peer=Peer("somebody", ("scout",)))).session_id
        assert [each.reachable for each in await acme.peers(sender)] == [False]
        with pytest.raises(WarrenError, match="there is no 'scout'"):
            await acme.send_message(sender, "scout", "hello")
        assert [each.reachable for each in await service.peers(mine)] == [False]


async def test_the_embedded_service_is_that_of_the_local_user() -> None:
    """A program that names no principal has all of one tenant."""
    async with open_runtime() as service:
        assert service.principal == LOCAL
        assert LOCAL.scopes == OWN_SCOPES
        assert service.as_(ACME).as_(LOCAL).principal == LOCAL
