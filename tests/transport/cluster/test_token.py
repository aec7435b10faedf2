"""The token by which nodes know each other."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.transport.clients import gateway, knock
from tests.transport.cluster.nodes import node, shared_store
from warren.base.errors import AgentError
from warren.settings.config import Config, NodeConfig, StoreConfig
from warren.transport.access.auth import NODE_CHALLENGE
from warren.transport.access.refusals import RefusedError
from warren.transport.cluster.token import LIFETIME, NodeTokens
from warren.transport.embed import open_supervisor

SECRET = b"s" * 32
RIGHT = "right-token"


@attrs.define
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Looks(OrderedDict[str, float]):
    """Challenges that count how many of them were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        for each in super().__iter__():
            self.looks += 1
            yield each

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


def challenge_of(callee: NodeTokens, token: str) -> str:
    """Return the challenge that a node gives to the owner of a token."""
    with pytest.raises(RefusedError) as refused:
        callee.accepts(token)
    assert refused.value.status == 401
    return dict(refused.value.headers)[NODE_CHALLENGE]


def answered(caller: NodeTokens, callee: NodeTokens) -> str:
    """Return a token that a node accepts."""
    return caller.make(2, challenge_of(callee, caller.make(2)))


def test_a_token_is_for_one_node_and_for_one_use() -> None:
    """The callee accepts it once; no other node does, nor one with another secret."""
    caller, callee = NodeTokens(SECRET, 1, "anna"), NodeTokens(SECRET, 2, "berta")
    token = answered(caller, callee)
    assert not caller.accepts(token)
    assert not NodeTokens(b"t" * 32, 2, "berta").accepts(token)
    assert callee.accepts(token)
    assert challenge_of(callee, token) != challenge_of(callee, token)
    assert caller.proves(token, callee.proof(token))
    assert not caller.proves(token, callee.proof(caller.make(2)))
    assert not caller.proves(token, NodeTokens(b"t" * 32, 2, "berta").proof(token))
    assert not caller.proves(token, "")


def test_a_challenge_is_good_for_a_while() -> None:
    """The time is that of the node that gave it; the clock of the other one may show any other."""
    clock = Clock()
    caller, callee = NodeTokens(SECRET, 1, "anna", lambda: 7.0), NodeTokens(SECRET, 2, "berta", clock)
    challenge = challenge_of(callee, caller.make(2))
    clock.now += LIFETIME - 1
    assert callee.accepts(caller.make(2, challenge))
    challenge = challenge_of(callee, caller.make(2, challenge))
    clock.now += LIFETIME + 1
    challenge = challenge_of(callee, caller.make(2, challenge))
    assert callee.accepts(caller.make(2, challenge))


def test_a_token_that_was_used_is_known_without_a_look_at_all_others() -> None:
    """However many were used of late: each is forgotten in its turn, and none as long as it could be used again."""
    clock, met = Clock(), Looks()
    caller, callee = NodeTokens(SECRET, 1, "anna"), NodeTokens(SECRET, 2, "berta", clock, met=met)
    late = challenge_of(callee, caller.make(2))
    clock.now += LIFETIME / 2
    used = [answered(caller, callee) for _ in range(200)]
    assert all(callee.accepts(each) for each in used)
    assert callee.accepts(caller.make(2, late))  # it expires before the others
    clock.now += LIFETIME / 2 + 1
    for each in (*used, caller.make(2, late)):
        challenge_of(callee, each)
    assert met.looks < 3 * len(used)
    clock.now += LIFETIME
    assert callee.accepts(answered(caller, callee))
    assert len(met) == 1


@pytest.mark.parametrize("other", ["", "x", "1e9~x~y", "9999999999~x~"])
def test_another_text_is_no_challenge(other: str) -> None:
    """Nor is that of another node."""
    caller, callee, third = (NodeTokens(SECRET, key, "anna") for key in (1, 2, 3))
    challenge_of(callee, caller.make(2, other))
    challenge_of(callee, caller.make(2, challenge_of(third, caller.make(3))))


@pytest.mark.parametrize("bad", ["", "node.", "node.e30.", "node.x.y", "node.é.é", "right-token"])
def test_other_texts_are_no_tokens(bad: str) -> None:
    """A text that is no token is refused like one with a wrong signature."""
    assert not NodeTokens(SECRET, 2, "berta").accepts(bad)


def test_a_changed_token_is_refused() -> None:
    """The signature is over every claim."""
    anna, callee = NodeTokens(SECRET, 1, "anna"), NodeTokens(SECRET, 2, "berta")
    payload, _, signature = answered(anna, callee).rpartition(".")
    other, _, _ = answered(NodeTokens(SECRET, 1, "clara"), callee).rpartition(".")
    assert callee.accepts(f"{payload}.{signature}")
    assert not callee.accepts(f"{other}.{signature}")


def test_nodes_of_two_releases_speak_the_links_that_both_know() -> None:
    """Whichever calls. One that speaks no version in common is told so."""
    old, middle, new = (NodeTokens(SECRET, 2, "berta", versions=each) for each in ((1, 1), (1, 2), (2, 3)))
    for one, other in ((old, middle), (middle, new)):
        assert one.accepts(answered(other, one))
        assert other.accepts(answered(one, other))
    for one, other in ((old, new), (new, old)):
        with pytest.raises(RefusedError, match=r"speaks the versions . to . of the links between nodes") as refused:
            one.accepts(other.make(2))
        assert refused.value.status == 409
        assert not one.accepts(other.make(3))


@pytest.mark.parametrize("versions", [(1, 1), (2, 2)])
def test_a_node_of_an_older_release_is_refused(versions: tuple[int, int]) -> None:
    """It would take a call of any tenant for one of the local user, or give no challenge."""
    this, older = NodeTokens(SECRET, 2, "anna"), NodeTokens(SECRET, 2, "berta", versions=versions)
    for one, other in ((this, older), (older, this)):
        with pytest.raises(RefusedError, match="of the links between nodes"):
            one.accepts(other.make(2))


async def test_a_node_tells_another_one_that_it_does_not_understand_it(tmp_path: Path) -> None:
    """The caller hears at once which node that is; what the store knows is answered all the same."""
    with shared_store("files", tmp_path) as store:
        async with node(store, "anna") as anna, node(store, "berta") as berta:
            session_id = (await anna.service.create_session("one")).session_id
            berta.service.tokens.versions = (98, 99)
            with pytest.raises(AgentError, match=r"at node anna of release .*: ask that node, or drain it") as refused:
                await berta.service.start_turn(session_id, "two")
            assert (refused.value.cause, refused.value.retryable) == ("unreachable", True)
            assert (await berta.service.read(session_id)).state.message_count == 2
            assert (await anna.service.start_turn(session_id, "two")).text == "two"


def test_the_secret_is_not_shown() -> None:
    """Its owner is logged without it."""
    assert repr(NodeTokens(SECRET, 1, "anna")) == "NodeTokens(key=1, name='anna')"


async def test_a_gateway_lets_nodes_in_without_the_token_of_clients(tmp_path: Path) -> None:
    """A node needs no token of the clients, a bad token of a node is refused even where clients need none."""
    config = Config(store=StoreConfig(tmp_path), node=NodeConfig("berta", "ws://127.0.0.1:9"))
    async with open_supervisor(config, environ={}) as service:
        store = await service.store()  # type: ignore[attr-defined] # of a node
        anna, berta = NodeTokens(await store.secret(), 0, "anna"), service.tokens  # type: ignore[attr-defined] # as above
        good = anna.make(store.key, challenge_of(berta, anna.make(store.key)))
        bad = NodeTokens(SECRET, 0, "anna").make(store.key)
        async with gateway(service, token=RIGHT) as port:
            assert await knock(port, authorization=f"Bearer {good}") == 101
            assert await knock(port, authorization=f"Bearer {good}") == 401
            assert await knock(port, authorization=f"Bearer {bad}") == 401
            assert await knock(port) == 401
        async with gateway(service) as port:
            assert await knock(port, authorization=f"Bearer {bad}") == 401
            assert await knock(port) == 101
