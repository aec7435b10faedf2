"""The versions of agents in each home: each is kept once for a tenant."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs

from tests.storage.conformance.homes import Home, done
from tests.storage.samples import NOW, child, turn
from warren.agents.spec import AgentSpec, StoredAgent
from warren.calls.sessions import ForkRequest
from warren.conversation.agents import AgentPin
from warren.conversation.options import SessionOptions
from warren.models.tools import ToolSpec
from warren.storage.operations import Commit, Delete, Fork, KeepAgent
from warren.storage.queries import AgentVersions, InTurn, SessionList, SessionRow
from warren.storage.store import Store

ONE = AgentSpec(
    "desk", "complaints\0", "Settle.", SessionOptions(temperature=0.5, tools=("pay",)), (ToolSpec("pay", "", {}),)
)
TWO = AgentSpec("desk", "complaints\0", "Settle it.")
CLERK = AgentSpec("clerk")
SECOND = timedelta(seconds=1)


async def keep(store: Store, *specs: AgentSpec, tenant: str = "default") -> None:
    """Keep agents, a second apart."""
    for number, each in enumerate(specs):
        await done(store, KeepAgent(tenant, each, NOW + number * SECOND))


async def test_versions_come_back_as_they_were(home: Home, tmp_path: Path) -> None:
    """The newest first, to the tenant alone; without a name the newest of each agent, by name."""
    async with home(tmp_path) as store:
        await keep(store, ONE, TWO, CLERK)
        await keep(store, ONE, tenant="other")
        one, two = (
            await store.read(AgentVersions("default", "desk")),
            StoredAgent("default", TWO.version, NOW + SECOND, TWO),
        )
        assert one == [two, StoredAgent("default", ONE.version, NOW, ONE)]
        assert one.damaged == []
        assert [each.spec for each in await store.read(AgentVersions("default", "desk", limit=1))] == [TWO]
        assert [each.spec for each in await store.read(AgentVersions("default", "desk", ONE.version))] == [ONE]
        assert await store.read(AgentVersions("other", "desk", TWO.version)) == []
        assert [each.spec for each in await store.read(AgentVersions("default"))] == [CLERK, TWO]
        assert [each.spec for each in await store.read(AgentVersions("default", limit=1))] == [CLERK]
        assert [each.spec for each in await store.read(AgentVersions("other"))] == [ONE]
        assert await store.read(AgentVersions("nobody")) == []


async def test_a_version_is_kept_once(home: Home, tmp_path: Path) -> None:
    """A process that keeps it later changes nothing: neither its time nor its place."""
    async with home(tmp_path) as store:
        await keep(store, ONE, TWO, ONE)
        found = await store.read(AgentVersions("default", "desk"))
        assert [(each.version, each.created_at) for each in found] == [
            (TWO.version, NOW + SECOND),
            (ONE.version, NOW),
        ]


async def test_a_session_keeps_the_version_that_it_was_made_with(home: Home, tmp_path: Path) -> None:
    """It is part of its record."""
    async with home(tmp_path) as store:
        made = turn("a")
        pin = AgentPin("desk", ONE.version, ("the tool pay",))
        await done(store, attrs.evolve(made, record=made.record.changed(agent=pin)))
        record = await store.read(SessionRow("a", "default"))
        assert record is not None
        assert record.agent == pin


async def test_sessions_are_found_by_their_agent(home: Home, tmp_path: Path) -> None:
    """With their forks and children, until they have another agent or are deleted; by their own tenant."""
    async with home(tmp_path) as store:

        def of(session_id: str, agent: AgentPin | None) -> Commit:
            made = turn(session_id)
            return attrs.evolve(made, record=made.record.changed(agent=agent))

        async def listed(name: str, tenant: str = "default", **more: Any) -> list[str]:
            return [each.session_id for each in await store.read(SessionList(tenant, agent=name, **more))]

        desk, clerk = AgentPin("desk", ONE.version), AgentPin("clerk", CLERK.version)
        await store.write([of("a", desk), of("b", clerk), of("c", None)])
        await done(store, Fork("f", NOW + SECOND, ForkRequest("a"), "local"))
        ours = child("d", "a")
        await done(store, attrs.evolve(ours, record=ours.record.changed(agent=desk)))
        assert await listed("desk") == ["f", "a", "d"]
        assert await listed("desk", delegated_by="a") == ["d"]
        assert await listed("desk", limit=1, offset=1) == ["a"]
        assert await listed("clerk") == ["b"]
        assert await listed("clerk", in_turn=InTurn("running")) == []
        assert await listed("de") == await listed("desk", "other") == []
        moved = turn("a", 1)
        await done(store, attrs.evolve(moved, record=moved.record.changed(agent=clerk)))
        await done(store, Delete("d"))
        assert (await listed("desk"), sorted(await listed("clerk"))) == (["f"], ["a", "b"])
