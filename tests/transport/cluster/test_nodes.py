"""The nodes as their clients see them: the list, whose session is where, and a drain that is asked for."""

from pathlib import Path

import attrs
import pytest
import trio

from tests.support.asking import ask
from tests.support.models import Puppet
from tests.support.runtime import open_runtime
from tests.support.waiting import turn_awaited
from tests.transport.cluster.nodes import Home, node, shared_store
from tests.transport.http.tokens import SCOPES, listed
from warren.base.errors import InvalidParamsError, PermissionDeniedError, SessionNotRunningError
from warren.base.principals import LOCAL
from warren.client import connect
from warren.settings.config import Limits

pytestmark = pytest.mark.time_limit(60)


@pytest.mark.parametrize("home", ["files", "database"])
async def test_a_node_that_is_drained_through_another_loses_nothing(home: Home, tmp_path: Path) -> None:
    """A client of one node lists both and drains the other: its turn ends, its sessions go on, the audit knows who.

    The audit is that of the operator's own tenant, in whichever one it works: nodes are none of the others' business.
    """
    tokens, puppet = tmp_path / "tokens.toml", Puppet()
    operator, plain = listed(tokens, scopes=(*SCOPES, "tenant:admin")), listed(tokens, name="plain")
    settings = {"token_file": tokens}
    with shared_store(home, tmp_path) as place:
        store = attrs.evolve(place, lease=1.5)  # a node hears of the wish when it renews its leases
        async with (
            node(store, "berta", settings=settings, puppet=puppet) as berta,
            connect(berta.url, token=operator) as client,
            connect(berta.url, token=operator, tenant="acme") as in_acme,
        ):
            async with (
                node(store, "anna", settings=settings, puppet=puppet) as anna,
                connect(anna.url, token=operator) as at_anna,
                connect(berta.url, token=plain) as other,
            ):
                idle = (await at_anna.create_session("one")).session_id
                busy = (await at_anna.create_session(None, model="puppet")).session_id
                own = (await client.create_session("here")).session_id
                assert {each.name: each.address for each in await other.nodes()} == {
                    "anna": anna.url,
                    "berta": berta.url,
                }
                for each in (client, at_anna):
                    rows = {row.session_id: row.node for row in (await each.list()).sessions}
                    assert rows == {idle: "anna", busy: "anna", own: "berta"}
                with pytest.raises(PermissionDeniedError, match="tenant:admin"):
                    await other.drain_node("anna")
                with pytest.raises(InvalidParamsError, match=r"\$\.name: no living node has the name 'clara'"):
                    await client.drain_node("clara")
                async with trio.open_nursery() as turns:
                    turns.start_soon(at_anna.start_turn, busy, "two")
                    await puppet.reached(1)
                    await in_acme.drain_node("anna")
                    await anna.service.asked_to_drain()
                    puppet.say("an answer", None)
                    await anna.service.drain()  # as `warren serve` does when it is asked
            assert [each.name for each in await client.nodes()] == ["berta"]
            for session_id in (idle, busy):
                assert (await client.start_turn(session_id, "go on", model="echo")).text == "go on"
            assert (await client.history(busy)).messages[1].message.text == "an answer"  # type: ignore[union-attr] # it is the model's
            assert {row.node for row in (await client.list()).sessions} == {"berta"}
            noted = [(each.who, each.outcome, each.details) for each in (await client.audit(action="drain")).entries]
            assert noted == [("plain", "refused", {"node": "anna"}), ("ci", "done", {"node": "anna"})]
            assert (await in_acme.audit(action="drain")).entries == ()


async def test_a_turn_is_waited_for_through_any_node(tmp_path: Path) -> None:
    """A client of another node gets the result of a turn, and its node claims nothing."""
    puppet = Puppet()
    with shared_store("files", tmp_path) as store:
        async with (
            node(store, "anna", puppet=puppet) as anna,
            node(store, "berta", puppet=puppet) as berta,
            connect(anna.url) as at_anna,
            connect(berta.url) as at_berta,
            trio.open_nursery() as nursery,
        ):
            session_id = (await at_anna.create_session(None, model="puppet")).session_id
            started = ask(nursery, at_anna.start_turn, session_id, "one")
            await puppet.reached(1)
            waits = ask(nursery, at_berta.wait_turn, session_id)
            await turn_awaited(anna.service, session_id)
            puppet.say("an answer", None)
            assert await waits.value() == await started.value()
            assert await berta.holder(session_id) == "anna"
            with pytest.raises(SessionNotRunningError):
                await at_berta.wait_turn(session_id)


async def test_a_wait_outlives_the_node_of_the_turn(tmp_path: Path) -> None:
    """A node that ends parks the turn, and the node of whoever waits goes on with it: the wait gets its end."""
    puppet, model = Puppet(), "puppet"
    with shared_store("files", tmp_path) as store:
        async with node(store, "berta", puppet=puppet) as berta, connect(berta.url) as at_berta:
            async with trio.open_nursery() as nursery:
                async with node(store, "anna", puppet=puppet, limits=Limits(drain=0.1)) as anna:
                    session_id = (await anna.service.create_session(None, model=model)).session_id
                    ask(nursery, anna.service.start_turn, session_id, "one")
                    await puppet.reached(1)
                    waits = ask(nursery, at_berta.wait_turn, session_id)
                    await turn_awaited(anna.service, session_id)
                await puppet.reached(2)
                puppet.say("an answer", None)
                assert (await waits.value()).text == "an answer"
            assert await berta.holder(session_id) == "berta"


async def test_a_process_alone_lists_itself(tmp_path: Path) -> None:
    """It is no node, so no row names one, and nobody can drain it by a name."""
    for store in (None, tmp_path):
        async with open_runtime(store=store) as service:
            operator = service.as_(attrs.evolve(LOCAL, scopes=LOCAL.scopes | {"tenant:admin"}))
            await service.create_session("hello")
            (alone,) = await operator.nodes()
            assert alone.address is None
            assert [row.node for row in (await operator.list()).sessions] == [None]
            with pytest.raises(InvalidParamsError, match="is no node that can be drained by its name"):
                await operator.drain_node(alone.name)
