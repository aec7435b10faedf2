"""Nodes on one store, and the faults that befall them. Time is virtual, and a seed draws all that is left to chance."""

import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import trio

from tests.simulation.clock import sleep
from tests.simulation.network import Call, Port, Wire
from tests.simulation.record import Record
from tests.simulation.servers import Model, tools_of
from tests.support.faulty_store import CrashError
from warren.actors.calls.service import Service
from warren.actors.resources.storage import StorageActor
from warren.actors.runtime import open_runtime
from warren.base.errors import StoreError
from warren.base.nodes import Node as Neighbour
from warren.calls.facade import RuntimeService
from warren.conversation.options import CompactionConfig
from warren.reports.reports import FileFacts, Report
from warren.settings.config import Config, Limits, NodeConfig, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.operations import Commit, Operation
from warren.storage.sqlite import Holder, SqliteStore
from warren.storage.sqlite.database import close_writer
from warren.storage.sqlite.file import FILE_NAME, open_writer
from warren.transport.client.connection import Dial
from warren.transport.cluster.peers import Peers
from warren.transport.cluster.placed import clustered
from warren.transport.providers import open_providers
from warren.transport.rpc.methods import Host

R = TypeVar("R")
EPOCH: Final = 1_800_000_000.0
LEASE: Final = 2.0
"""Seconds of a lease: a node that is silent for so long has lost its sessions."""
SLOTS: Final = ("anna", "berta")
ALONE: Final = "clara"
BLOCK: Final = 4096
NOISE: Final = b"\xa5"
SMALL: Final = CompactionConfig(40, recent_turn_budget=0, min_turns_between_compactions=0)


@cache
def empty_store() -> bytes:
    """Return the file of an empty store: to make it anew for each seed would take a tenth of the time."""
    with tempfile.TemporaryDirectory() as folder:
        config = StoreConfig(Path(folder))
        close_writer(open_writer(config))
        return (config.path / FILE_NAME).read_bytes()


class KilledError(BaseException):
    """A dead node went on. It ends all of its tasks, as no process of the node is there any more."""


@attrs.define(eq=False)
class World:
    """All that there is.

    Attributes:
        chance: draws what the seed decides.
        folder: the folder of the store.
        tasks: runs the nodes.
        clustered: whether processes are nodes, else each serves its sessions to its own clients alone.
        compacts: whether contexts are compacted in the middle of turns, which stores their beginnings.
        held: events that a node keeps of the running turn of another one.
        record: what the servers and the stores have seen.
        ahead: seconds by which the wall clock of the machine was put forward.
        newest: the newest time that the wall clock had before it was put back.
        nodes: those that serve, by name.
        lives: all nodes so far.
        calm: whether no fault comes any more.
    """

    chance: random.Random
    folder: Path
    tasks: trio.Nursery
    clustered: bool = True
    compacts: bool = False
    held: int = 1_000
    record: Record = attrs.field(factory=Record)
    ahead: float = 0.0
    newest: float = 0.0
    nodes: dict[str, "Node"] = attrs.field(factory=dict)
    lives: list["Node"] = attrs.field(factory=list)
    calm: bool = False

    @classmethod
    def of(cls, seed: int, folder: Path, tasks: trio.Nursery) -> "World":
        """Make the world of a seed."""
        chance = random.Random(seed)  # noqa: S311 - the seed tells all
        compacts, held = chance.random() < 0.3, chance.choice((2, 1_000))
        return cls(chance, folder / f"{seed}", tasks, compacts=compacts, held=held)

    def now(self) -> float:
        """Return the time by the wall clock of the machine."""
        return EPOCH + self.ahead + trio.current_time()

    @property
    def latest(self) -> float:
        """The newest time that the wall clock has had."""
        return max(self.newest, self.now())

    @property
    def log(self) -> Path:
        """The write-ahead log of the store."""
        return self.folder / f"{FILE_NAME}-wal"

    def latency(self) -> float:
        """Draw the seconds that a message, or a look at the disk, takes."""
        return self.chance.choice((0.0, 0.0, 0.0005, 0.004, 0.05))

    def any_node(self) -> "Node | None":
        """Draw a node that serves."""
        return self.nodes[self.chance.choice(sorted(self.nodes))] if self.nodes else None

    def reach(self) -> Wire:
        """Connect a client to some node. Raises OSError if there is none."""
        node = self.any_node()
        if node is None:
            raise ConnectionRefusedError
        return node.port.connect(node.port.clients)

    def reach_node(self, name: str) -> Wire:
        """Connect a node to another one. Raises OSError if it is gone."""
        node = self.nodes.get(name)
        if node is None:
            raise ConnectionRefusedError
        return node.port.connect(node.port.nodes)

    def cut_power(self, before: bytes) -> None:
        """Kill all processes in the middle of a commit: of its part of the log some bytes, or none, reach the disk.

        Args:
            before: the log before the commit.
        """
        after, old = self.log.read_bytes(), self.folder
        at = 0  # the end of what the commit has left as it was; a log that began anew has new bytes at its beginning
        while at + BLOCK <= len(before) and before[at : at + BLOCK] == after[at : at + BLOCK]:
            at += BLOCK
        pairs = zip(before[at : at + BLOCK], after[at : at + BLOCK], strict=False)
        first = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        cut = first + int((len(after) - first) * self.chance.choice((0.0, 0.3, 0.9, 1.0)))
        self.folder = old.with_name(f"{old.name}.")  # the dead may move the log of their folder at any time
        self.folder.mkdir()
        shutil.copy(old / FILE_NAME, self.folder / FILE_NAME)
        torn = after[:cut] + self.chance.choice((before[cut:], NOISE * (len(after) - cut)))
        self.log.write_bytes(torn)
        for node in self.lives:
            if not node.gone.is_set():
                node.kill()

    async def start(self, slot: str) -> "Node":
        """Start a node; the process in the slot `ALONE` serves its sessions to its own clients alone."""
        node = Node(self, f"{slot}{len(self.lives) + 1}", alone=slot == ALONE or not self.clustered)
        self.lives.append(node)
        await self.tasks.start(node.live)
        return node


@attrs.define(eq=False)
class Node:
    """One life of a node.

    Attributes:
        world: the world.
        name: its name.
        alone: whether it is no node for the others.
        dead: whether it was killed.
        hung: set when it goes on; None if it does not hang.
        away: whether it cannot reach the store.
        full: whether the store has no room for its turns.
        packed: whether the store has no room for anything that it would add.
        crashes: how many of its next writes crash; half of them once they are done.
        power_fails: whether the power of the machine is cut in the middle of its next commit.
        writes: the group that each task is about to write.
        leaves: set to have it end in order.
        gone: set when nothing of it is left.
    """

    world: World
    name: str
    alone: bool = False
    dead: bool = False
    hung: trio.Event | None = None
    away: bool = False
    full: bool = False
    packed: bool = False
    crashes: int = 0
    power_fails: bool = False
    writes: dict[trio.lowlevel.Task, Sequence[Operation[Any]]] = attrs.field(factory=dict)
    leaves: trio.Event = attrs.field(factory=trio.Event)
    gone: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _guests: set[trio.CancelScope] = attrs.field(factory=set)
    _holder: Holder | None = None
    _service: RuntimeService | None = None
    _port: Port | None = None

    @property
    def service(self) -> RuntimeService:
        """Its service."""
        assert self._service is not None
        return self._service

    @property
    def port(self) -> Port:
        """Its port."""
        assert self._port is not None
        return self._port

    # -- the faults

    def kill(self) -> None:
        """End it at once, as `kill -9` does, also if it hangs."""
        self.dead = True
        self.go_on()
        self._serve_no_more()
        if self._holder is not None:
            self._holder.die()
        self._scope.cancel()
        for guest in self._guests:
            guest.cancel()

    def hang(self) -> None:
        """Let it do nothing that others would see until `go_on`."""
        self.hung = trio.Event() if self.hung is None else self.hung
        self.port.hang()

    def go_on(self) -> None:
        """End a hang, and reach the store again."""
        self.away = False
        if self.hung is not None:
            self.hung.set()
            self.hung = None
            self.port.flow()

    def check_room(self, operations: Sequence[Operation[Any]]) -> None:
        """Raise StoreError if the disk is full for some operations."""
        commits = [each for each in operations if isinstance(each, Commit)]
        if (self.packed and commits) or (self.full and any(each.messages for each in commits)):
            raise StoreError("the disk is full", cause="disk_full")

    @contextmanager
    def visit(self) -> Iterator[trio.CancelScope]:
        """Cancel a body within this process when it is killed."""
        with trio.CancelScope() as scope:
            self._guests.add(scope)
            try:
                yield scope
            except KilledError:  # what the guest has asked for was on its way to the disk
                pass
            finally:
                self._guests.discard(scope)

    def _serve_no_more(self) -> None:
        self.world.nodes.pop(self.name, None)
        if self._port is not None:
            self._port.close()

    # -- the life

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until it is killed or told to leave."""
        try:
            with self._scope:
                await self._serve(task_status)
        except* (KilledError, StoreError):
            if not self.dead:
                raise
        finally:
            if self._port is None:  # killed before it served
                task_status.started()
            self._serve_no_more()
            self.gone.set()

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        store = StoreConfig(self.world.folder, lease=LEASE, projections=False)
        self._holder = Holder(store.path / "holders", self.name, LEASE, clock=self.world.now)
        config = Config(
            store=store,
            node=None if self.alone else NodeConfig(self.name, f"ws://{self.name}"),
            model="test",
            limits=Limits(idle_after=0.5, approval_timeout=2.0, drain=2.0),
            tools=ToolsConfig(delegate=True, wake_me=True),
            compaction=SMALL if self.world.compacts else CompactionConfig(),
        )

        async def open_store() -> Any:
            return UnsteadyStore(await SqliteStore.open(store, holder=self._holder, runner=self.reach_disk), self)

        async with (
            open_providers({}, extra={"test": Model(self)}) as providers,
            open_runtime(config, providers, tools_of(self), open_store=open_store) as runtime,
            AsyncExitStack() as stack,
        ):
            storage = runtime.supervisor.shared.storage
            assert isinstance(storage, StorageActor)
            storage.fence.clock = trio.current_time
            assert isinstance(runtime.service, Service)
            runtime.service.local.checks.examine = self._examine
            await storage.renew()
            self._service, own = runtime.service, Host(runtime.service)
            if not self.alone:
                opened = clustered(runtime, partial(Neighbours, world=self.world))
                self._service = service = await stack.enter_async_context(opened)
                service.fanout.keep = self.world.held
                own = Host(service.own, of_nodes=True)
            connections = await stack.enter_async_context(trio.open_nursery())
            self._port = Port(connections, Host(self._service), own, self.world.latency)
            self.world.nodes[self.name] = self
            task_status.started()
            await self.leaves.wait()
            with trio.move_on_after(self.world.chance.choice((0.0, 1.0))):
                await self._service.drain()
            await self._service.stop()
            self._serve_no_more()
            connections.cancel_scope.cancel()

    async def reach_disk(self, function: Callable[[], R], /) -> R:
        """Do what the disk has to do, unless it is dead."""
        await sleep(self.world.latency())
        await self._live_on()
        operations = self.writes.pop(trio.lowlevel.current_task(), ())
        before = self.world.log.read_bytes() if operations and self.power_fails else None
        result = function()
        if before is not None:
            self.world.record.unsure.update(each.session_id for each in operations)
            self.world.cut_power(before)
        elif operations:
            assert isinstance(result, list)
            self.world.record.wrote(self.name, operations, result)
        if latency := self.world.latency():  # done, and not known here yet
            await sleep(latency)
        await self._live_on()
        return result

    async def _examine(self, store: StoreConfig, _memory: object) -> Report[FileFacts]:
        return await self.reach_disk(partial(examine, store))

    async def _live_on(self) -> None:
        """Wait for the end of a hang. Raises KilledError if there is no process any more."""
        while self.hung is not None and not self.dead:
            await self.hung.wait()
        if self.dead:
            raise KilledError


REACHING: Final = ("ask_to_drain", "read", "renew", "secret", "version_of_others")
"""The methods of a store that may find it out of reach, besides those that `UnsteadyStore` has."""


class UnsteadyStore:
    """A store that its node cannot reach now and then, as a database on another machine."""

    def __init__(self, store: SqliteStore, node: Node) -> None:
        self._behind = store
        self._node = node
        for name in REACHING:
            setattr(self, name, partial(self._call, getattr(store, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def aclose(self, *, leave: bool = True) -> None:
        await self._behind.aclose(leave=leave)

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        with trio.CancelScope(shield=True):
            node = self._node
            try:
                await self._look()
                node.check_room(operations)
            except StoreError as exc:
                return [StoreError(exc.message, session_id=each.session_id, cause=exc.cause) for each in operations]
            crashes, node.crashes = node.crashes > 0, max(0, node.crashes - 1)
            if crashes and node.world.chance.random() < 0.5:
                raise CrashError("before a write")
            node.writes[trio.lowlevel.current_task()] = operations
            found: list[Any] = await self._behind.write(operations)
            if crashes:
                raise CrashError("after a write")
        return found

    async def _call(self, method: Callable[..., Awaitable[R]], *args: Any, **options: Any) -> R:
        await self._look()
        result = await method(*args, **options)
        await self._look()
        return result

    async def _look(self) -> None:
        if self._node.away:
            await trio.sleep(self._node.world.chance.choice((0.0, 0.1, 1.0)))
        if self._node.away:
            raise StoreError("the database cannot be reached", cause="unreachable")


@attrs.define(eq=False)
class Neighbours(Peers):
    """The clients of the other nodes, in the simulated network."""

    world: World = attrs.field(kw_only=True)

    def dial(self, node: Neighbour) -> Dial:
        assert node.name is not None
        return Call(reach=partial(self.world.reach_node, node.name), ping_interval=self.lease / 2)
