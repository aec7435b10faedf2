"""Principals at a node whose sessions are at another one: the link between the two carries whose call it is."""

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from tests.service.principals import ACME, OF_SESSIONS, called, fields
from tests.support.models import Emit, reply
from tests.transport.cluster.nodes import cluster, events_of, shared_store
from warren.base.errors import InvalidParamsError, PermissionDeniedError, SessionNotFoundError
from warren.base.ids import new_session_id
from warren.base.principals import Principal
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Limits, PostgresConfig, StoreConfig
from warren.storage.queries import LivingNodes
from warren.transport.client import connect

pytestmark = pytest.mark.time_limit(60)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreConfig | PostgresConfig]:
    """A place for a store."""
    with shared_store("files", tmp_path) as made:
        yield made


async def test_a_session_of_another_node_is_its_tenants_alone(store: StoreConfig | PostgresConfig) -> None:
    """Its tenant works with it through any node; to others it is unknown there as everywhere, to the word."""
    async with cluster(store, 2) as (anna, berta):
        one = (await anna.service.as_(ACME).create_session("one")).session_id
        bob = berta.service.as_(Principal("acme", "bob"))
        assert (await bob.start_turn(one, "two")).text == "two"
        assert (await bob.read(one)).state.owner == "ann"
        last = (await bob.start_turn(one, "three")).last_seq or 0
        assert await events_of(bob, one, last) == await events_of(anna.service.as_(ACME), one, last)
        assert await anna.holder(one) == "anna"
        for node in (anna, berta):
            for method in OF_SESSIONS:
                unknown = new_session_id()
                found = fields(await called(node.service, method, one), one)
                assert found == fields(await called(node.service, method, unknown), unknown)
        assert (await bob.read(one)).state.message_count == 6
        reader = berta.service.as_(Principal("acme", "eve", frozenset({"session:read"})))
        assert (await reader.read(one)).state.message_count == 6
        with pytest.raises(PermissionDeniedError):
            await reader.start_turn(one, "four")


async def test_a_node_checks_the_calls_of_another_node(store: StoreConfig | PostgresConfig) -> None:
    """The caller's tenant and scopes come over the link, also to a session that the link follows for another one."""
    async with cluster(store, 2) as (anna, berta):
        one = (await anna.service.as_(ACME).create_session("one")).session_id
        shared = await berta.service.store()
        me = next(each for each in await shared.read(LivingNodes()) if each.name == "anna")
        acme, default = berta.service.as_(ACME).remote(me), berta.service.remote(me)
        async with acme.subscribe(one, after_seq=0) as reader:
            assert (await anext(reader)).session_id == one
            for after_seq in (None, 0):
                with pytest.raises(SessionNotFoundError):
                    async with default.subscribe(one, after_seq=after_seq):
                        pass
            with pytest.raises(SessionNotFoundError):
                await default.read(one)
        with pytest.raises(PermissionDeniedError):
            await acme.as_(attrs.evolve(ACME, scopes=frozenset({"session:read"}))).archive(one)
        assert (await acme.read(one)).state.lifecycle == "live"


async def test_a_client_cannot_call_on_behalf_of_another_principal(store: StoreConfig | PostgresConfig) -> None:
    """Only the link of a node carries a principal: elsewhere it is an unknown parameter."""
    async with cluster(store, 1) as (anna,):
        one = (await anna.service.as_(ACME).create_session("one")).session_id
        async with connect(anna.url) as client:
            with pytest.raises(InvalidParamsError, match="on_behalf_of"):
                await client.as_(ACME).read(one)
            with pytest.raises(SessionNotFoundError):
                await client.read(one)


async def test_a_session_that_another_node_creates_is_the_callers(store: StoreConfig | PostgresConfig) -> None:
    """A full node lets another one create it: for the same tenant, in the same name."""
    began, go = trio.Event(), trio.Event()

    class Gate:
        async def complete(self, _request: ModelRequest, _emit: Emit) -> ModelReply:
            began.set()
            await go.wait()
            return reply("done")

    async with (
        cluster(store, 2, test=Gate(), limits=Limits(max_sessions=1)) as (anna, berta),
        trio.open_nursery() as tasks,
    ):
        tasks.start_soon(lambda: anna.service.create_session("hi", model="test"))
        await began.wait()
        one = (await anna.service.as_(ACME).create_session("one")).session_id
        assert await anna.holder(one) == "berta"
        state = (await berta.service.as_(ACME).read(one)).state
        assert (state.tenant, state.owner) == ("acme", "ann")
        go.set()
