"""Runtimes as nodes on one store: they announce themselves, hear of a wish to drain, and never take from each other."""

from pathlib import Path
from typing import Final, NoReturn

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.models import GatedModel, says
from tests.support.runtime import new_session, open_runtime, storage_of
from warren.actors.resources.node import LocalNode
from warren.base.errors import CapacityExceededError, LeasedError, StoreError
from warren.base.fields import FieldValueError
from warren.base.nodes import NodeLoad
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits
from warren.calls.facade import SessionService
from warren.settings.config import Config, Limits, NodeConfig
from warren.storage.queries import LivingNodes

pytestmark = pytest.mark.virtual_time
NORTH: Final = Config(node=NodeConfig("north", "ws://10.0.0.1:4600"), limits=Limits(max_sessions=2))
SOUTH: Final = Config(node=NodeConfig("south", "ws://10.0.0.2:4600"))


def node_of(service: SessionService) -> LocalNode:
    """Return a runtime as a node."""
    node = storage_of(service).node
    assert node is not None
    return node


async def test_a_node_is_registered_from_the_start_and_tells_its_load(tmp_path: Path) -> None:
    """Before its first session; the load that others see is of the newest renewal."""
    model = GatedModel()
    async with open_runtime(model, store=tmp_path, config=NORTH) as north, open_runtime(store=tmp_path) as other:
        store = await storage_of(other).reader()
        (node,) = await store.read(LivingNodes())
        assert (node.name, node.address, node.load.live_sessions) == ("north", "ws://10.0.0.1:4600", 0)
        assert (await storage_of(north).reader()).key == node.key
        async with trio.open_nursery() as nursery:
            session_id = await new_session(north)
            ask(nursery, north.start_turn, session_id, "hello")
            await trio.sleep(store.renewal + 0.1)
            (node,) = await store.read(LivingNodes())
            assert node.load == NodeLoad(1, 1, 2)
            model.gate.set()


async def test_a_node_that_drains_says_so_at_once(tmp_path: Path) -> None:
    """It does not wait for the next renewal."""
    async with open_runtime(store=tmp_path, config=NORTH) as north, open_runtime(store=tmp_path) as other:
        node_of(north).drain()
        await trio.testing.wait_all_tasks_blocked()
        (node,) = await (await storage_of(other).reader()).read(LivingNodes())
        assert node.draining


async def test_a_node_hears_that_it_should_drain(tmp_path: Path) -> None:
    """Within the time between two renewals; the other one hears nothing."""
    async with (
        open_runtime(store=tmp_path, config=NORTH) as north,
        open_runtime(store=tmp_path, config=SOUTH) as south,
    ):
        store = await storage_of(south).reader()
        assert await store.ask_to_drain("north")
        with trio.fail_after(store.renewal + 0.1):
            await node_of(north).asked.wait()
        await trio.sleep(store.renewal)
        assert not node_of(south).asked.is_set()


async def test_a_node_never_takes_an_idle_session_from_a_node(tmp_path: Path) -> None:
    """It is refused at once, for each kind of request; a process that is no node is handed the session."""
    async with (
        open_runtime(says(["one"], ["three"]), store=tmp_path, config=NORTH) as north,
        open_runtime(says(["two"]), store=tmp_path, config=SOUTH) as south,
        open_runtime(says(["two"]), store=tmp_path) as command,
    ):
        session_id = (await north.create_session("hello")).session_id
        began = trio.current_time()
        with pytest.raises(LeasedError):
            await south.start_turn(session_id, "go on")
        with pytest.raises(LeasedError):
            await south.label(session_id, {"a": "b"})
        with pytest.raises(LeasedError):
            await south.start_turn(session_id, "go on", mode="queue")
        assert trio.current_time() == began
        assert (await command.start_turn(session_id, "go on")).text == "two"


async def test_a_node_asks_a_process_that_serves_no_others(tmp_path: Path) -> None:
    """A command's idle session is handed over to a node, which could not forward anything there."""
    async with (
        open_runtime(says(["one"]), store=tmp_path) as command,
        open_runtime(says(["two"]), store=tmp_path, config=SOUTH) as south,
    ):
        session_id = (await command.create_session("hello")).session_id
        assert (await south.start_turn(session_id, "go on")).text == "two"


async def test_a_node_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Without one in its settings it is made of the host and the pid, so that it can be asked to drain."""
    async with open_runtime(store=tmp_path, config=attrs.evolve(NORTH, node=NodeConfig())) as north:
        store = await storage_of(north).reader()
        (node,) = await store.read(LivingNodes())
        assert node.name
        assert await store.ask_to_drain(node.name)


async def test_a_node_needs_a_store() -> None:
    """The error names the setting; so does that of a bad name."""
    with pytest.raises(FieldValueError, match="node needs a store"):
        async with open_runtime(config=NORTH):
            pass
    for bad in ("", " north"):
        with pytest.raises(FieldValueError, match="name must be a text"):
            NodeConfig(bad)


async def test_limits_of_a_tenant_are_shared_out(tmp_path: Path) -> None:
    """Each living node may use its part, rounded up; while the nodes cannot be counted their number stays."""
    north, south = (attrs.evolve(each, tenants={"acme": TenantLimits(turns_per_minute=5)}) for each in (NORTH, SOUTH))
    async with open_runtime(store=tmp_path, config=north) as one:
        acme, store = one.as_(Principal("acme", "ann")), await storage_of(one).reader()
        session_id = await new_session(acme)
        async with open_runtime(store=tmp_path, config=south):
            await trio.sleep(store.renewal + 0.1)
            for _ in range(3):
                await acme.start_turn(session_id, "hi")
            with pytest.raises(CapacityExceededError):
                await acme.start_turn(session_id, "hi")

            async def unreachable(_query: object) -> NoReturn:
                raise StoreError("away", cause="unreachable")

            store.read = unreachable  # type: ignore[method-assign, assignment] # the store of the test
            await trio.sleep(2 * store.renewal)
            del store.read
        await trio.sleep(60)
        for _ in range(5):
            await acme.start_turn(session_id, "hi")
