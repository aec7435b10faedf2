"""The faults that befall nodes: each begins, lasts for a while, and is over."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from tests.simulation.world import LEASE, Node

Fault = Callable[[Node, float], Awaitable[None]]


async def kill(node: Node, lasts: float) -> None:
    """Kill a node."""
    node.kill()
    await trio.sleep(lasts)


async def leave(node: Node, lasts: float) -> None:
    """End a node in order."""
    node.leaves.set()
    await node.gone.wait()
    await trio.sleep(lasts)


async def cut_power(node: Node, lasts: float) -> None:
    """Cut the power in the middle of the next commit of a node, if there is one meanwhile."""
    node.power_fails = True
    await trio.sleep(lasts)
    node.power_fails = False


async def hang(node: Node, lasts: float) -> None:
    """Let a node hang for a while, some times for longer than its leases last."""
    node.hang()
    try:
        await trio.sleep(lasts)
    finally:  # also if the play fails meanwhile: no task of a node that hangs can be cancelled
        node.go_on()


async def cut(node: Node, lasts: float) -> None:
    """Break all connections of a node."""
    node.port.cut()
    await trio.sleep(lasts)


async def crash(node: Node, lasts: float) -> None:
    """Let the next write of a node crash its actor."""
    node.crashes = 1
    await trio.sleep(lasts)


async def fill(node: Node, lasts: float) -> None:
    """Let the store have no room for the turns of a node for a while."""
    node.full = True
    await trio.sleep(lasts)
    node.full = False


async def pack(node: Node, lasts: float) -> None:
    """Let the store have no room for anything of a node, and end the node in order meanwhile."""
    node.packed = True
    await trio.sleep(min(lasts, 0.3))
    await leave(node, lasts)


async def part(node: Node, lasts: float) -> None:
    """Part a node from the store for a while."""
    await _part([node], lasts)


async def part_all(node: Node, lasts: float) -> None:
    """Part all nodes from the store for a while."""
    await _part(list(node.world.nodes.values()), lasts)


async def _part(nodes: Sequence[Node], lasts: float) -> None:
    for each in nodes:
        each.away = True
    await trio.sleep(lasts)
    for each in nodes:
        each.away = False


def _put_clock(node: Node, seconds: float) -> None:
    node.world.newest = node.world.latest
    node.world.ahead += seconds


async def jump(node: Node, lasts: float) -> None:
    """Put the wall clock of the machine forward, or back, for a while."""
    seconds = node.world.chance.choice((-10 * LEASE, -LEASE / 2, LEASE / 2, 10 * LEASE))
    _put_clock(node, seconds)
    await trio.sleep(lasts)
    _put_clock(node, -seconds)


FAULTS: Final[Mapping[str, Fault]] = {
    "kill": kill,
    "leave": leave,
    "hang": hang,
    "away": part,
    "all away": part_all,
    "full": fill,
    "full to the end": pack,
    "crash": crash,
    "cut": cut,
    "power cut": cut_power,
    "clock jumps": jump,
}
