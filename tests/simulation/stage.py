"""One run of a plan: the users and the faults do what it says, and then the checks judge what is left."""

import gc
import random
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import hypothesis
import trio
from hypothesis import strategies as st

from tests.simulation.checks import PASSING, Left, check
from tests.simulation.clock import Clock
from tests.simulation.faults import FAULTS
from tests.simulation.followers import Follower, Sight
from tests.simulation.kinds import ASK, FAILING, KINDS, MAKING, Turn, turn
from tests.simulation.outside import decide, decide_again, give_again
from tests.simulation.plan import Fault, Operation, Plan
from tests.simulation.record import AGAIN
from tests.simulation.servers import name_of
from tests.simulation.users import TENANTS, Told, User, call, shown, tried
from tests.simulation.world import SLOTS, Node, World, empty_store
from tests.support.tasks import waits
from warren.base.errors import SessionNotFoundError, WarrenError
from warren.conversation.records import SessionRecord
from warren.conversation.schedules import KEPT_RUNS, ScheduleView
from warren.conversation.views import HistoryPage
from warren.storage.rows import COLUMNS, DELETED, microseconds, row_to_record
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.file import FILE_NAME

LONGEST: Final = 120.0
"""Seconds within which each user has to know the end of what it asked for."""
BOUND: Final = 90.0
"""Seconds after that within which the sessions have to come to rest: a store that was full is tried twice a minute."""
END: Final = 300.0
"""Seconds after which a run has hung."""
CATCH_UP: Final = 20.0
"""Seconds within which a follower has to have seen all once nothing happens any more."""
IMPLIED: Final = 1_000
"""The number of the first operation that is in no plan."""
AT_REST: Final = 2_000
"""The number of the first operation that begins once all sessions rest."""
RESTS: Final = 5
"""Of so many seeds one asks at rest."""
ASKS: Final = Turn("pay", options={"approvals": ASK, "durability": "step"}, decision="before")
STRANGERS: Final = 2
"""Sessions of another tenant than the others; they are the last ones."""
FOLLOWED: Final = 2
"""Sessions that are followed from the beginning to the end."""

REMAINS: Final = {
    "a call has a state, and its turn has ended": """
        SELECT DISTINCT session_id FROM calls JOIN sessions ON sessions.key = session WHERE turn IS NULL
    """,
    "an input is there, and its session is not": """
        SELECT DISTINCT session_id FROM inbox JOIN sessions ON sessions.key = session WHERE state <> 0
    """,
    "a notice is there": """
        SELECT DISTINCT session_id FROM inbox JOIN sessions ON sessions.key = session WHERE notice AND outcome IS NULL
    """,
    "a child is there, and its parent has gone": """
        SELECT child.session_id FROM sessions AS child JOIN sessions AS parent ON parent.session_id = child.delegated_by
        WHERE parent.state > child.state
    """,
}
"""What should not be in the store once all sessions rest."""

BUSY: Final = """
    SELECT EXISTS (SELECT 1 FROM sessions WHERE turn IS NOT NULL)
    OR EXISTS (SELECT 1 FROM inbox JOIN sessions ON sessions.key = session WHERE outcome IS NULL AND starts)
    OR EXISTS (SELECT 1 FROM inbox WHERE notice AND outcome IS NULL)
    OR EXISTS (SELECT 1 FROM waits WHERE reason = 'background' AND state <> 'settled')
    OR EXISTS (SELECT 1 FROM schedules WHERE due < ?)
"""
"""Whether any session has anything to do, and whether a schedule is due before a time."""
SOON: Final = 3600.0
"""Seconds within which a schedule is waited for."""


@attrs.define(eq=False)
class Stage:
    """One run of a plan.

    Attributes:
        plan: the plan.
        world: the processes and their store.
        told: what the users of each session were told.
    """

    plan: Plan
    world: World
    told: list[Told]

    @property
    def wrong(self) -> list[str]:
        """What should not be."""
        return self.world.record.wrong

    async def run(self) -> None:
        """Carry the plan out, wait until all sessions rest, and check what is left."""
        world, record = self.world, self.world.record
        async with trio.open_nursery() as readers:
            async with trio.open_nursery() as doers:
                for slot in SLOTS:
                    doers.start_soon(self._keep_alive, slot, await world.start(slot))
                for fault in self.plan.faults:
                    doers.start_soon(self._befall, fault)
                with trio.move_on_after(LONGEST) as patience:
                    async with trio.open_nursery() as users:
                        for told in self.told:
                            users.start_soon(self._use_session, told, readers)
                if patience.cancelled_caught:
                    record.blame("a user never knew the end of a request")
                    record.wrong += waits(trio.lowlevel.current_task())
                await self._calm()
                await self._ask_at_rest()
                left = await self._left()
                await self._watch_followers(left)
                doers.cancel_scope.cancel()
            readers.cancel_scope.cancel()
        record.wrong += check(left)
        for node in list(world.nodes.values()):
            node.leaves.set()
            await node.gone.wait()

    # -- the users

    async def _use_session(self, told: Told, readers: trio.Nursery) -> None:
        """Make a session, and carry out what comes later in two lanes."""
        mine = [each for each in self.plan.operations if each.session == told.place]
        if not mine:
            return
        if mine[0].kind not in MAKING:  # a smaller plan may not have it any more
            mine.insert(0, Operation(IMPLIED + told.place, mine[0].at, told.place, MAKING[0]))
        await self._use(told, mine[:1])
        if told.session_id:
            if told.place < FOLLOWED:
                readers.start_soon(self._follow, told)
            async with trio.open_nursery() as lanes:
                lanes.start_soon(self._use, told, mine[1::2])
                lanes.start_soon(self._use, told, mine[2::2])

    async def _use(self, told: Told, operations: Sequence[Operation]) -> None:
        for operation in operations:
            await trio.sleep_until(operation.at)
            await self._carry_out(told, operation)

    async def _carry_out(self, told: Told, operation: Operation) -> None:
        chance = random.Random(f"{self.plan.seed} {operation.number}")  # noqa: S311 - the seed tells all
        user = User(self.world, told, self.told, operation.number, chance)
        user.note(operation.kind)
        kind = KINDS[operation.kind]
        outcome = await tried(kind.carry_out(user))
        user.note(f"is over: {shown(outcome)}")
        if isinstance(outcome, WarrenError) and not kind.errors & {outcome.code.value, outcome.cause}:
            self._judge(user, outcome)

    def _judge(self, user: User, error: WarrenError) -> None:
        """Blame a final error that nothing in the plan explains."""
        told = user.told
        if told.leaving and isinstance(error, SessionNotFoundError):
            return
        if (told.leaving or told.disturbed) and error.cause == "cancelled":
            return
        steered = {cause for _, cause in FAILING.values()}  # a prompt that is steered has the end of the other's turn
        if error.cause not in PASSING | steered | {"outcome_unknown"}:
            user.world.record.blame(f"nobody expected {error!r} ({error.cause}) of {user.name}")

    async def _follow(self, told: Told) -> None:
        sight = Sight(f"follower of {told.place}", 0, 0)
        told.sights.append(sight)
        follower = Follower(self.world, told.session_id, sight)
        await (follower.run_outside() if self.world.clustered else follower.run_within())

    # -- the faults

    async def _befall(self, fault: Fault) -> None:
        await trio.sleep_until(fault.at)
        node = next((each for name, each in self.world.nodes.items() if name.startswith(fault.slot)), None)
        if node is not None and not self.world.calm:
            self.world.record.note(f"{fault.kind} {node.name}")
            await FAULTS[fault.kind](node, fault.lasts)

    async def _keep_alive(self, slot: str, node: Node) -> None:
        """Start the next process of a slot some time after the end of the one before, for ever."""
        chance = random.Random(f"{self.plan.seed} starts {slot}")  # noqa: S311 - the seed tells all
        while True:
            await node.gone.wait()
            await trio.sleep(chance.choice((0.05, 0.3, 1.0)))
            node = await self.world.start(slot)

    # -- the end

    async def _calm(self) -> None:
        """End all faults, and wait until no session has anything to do."""
        world = self.world
        world.calm = True
        for node in world.nodes.values():
            node.crashes, node.full, node.packed, node.away, node.power_fails = 0, False, False, False, False
            node.go_on()
        with trio.move_on_after(BOUND) as patience:
            while not (len(world.nodes) == len(SLOTS) and await self._rests()):  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.2)
        if patience.cancelled_caught:
            world.record.blame("some sessions do not come to rest")

    async def _rests(self) -> bool:
        """Ask the store, which takes little time, and then a process, which may know of more."""
        with closing(apsw.Connection(str(self.world.folder / FILE_NAME))) as db:
            if db.execute(BUSY, (int((self.world.now() + SOON) * 1e6),)).get:
                return False
        (node, *_) = self.world.nodes.values()
        for told in self.told:
            if told.session_id and not told.over:
                try:
                    waiting = await node.service.as_(TENANTS[told.tenant]).inputs(told.session_id)
                except SessionNotFoundError:
                    continue
                except WarrenError:
                    return False
                if any(each.starts for each in waiting):
                    return False
        return True

    async def _ask_at_rest(self) -> None:
        """Let a call of each tenant wait for approval, look at the lists of all processes, and decide.

        In some seeds, as all that waits for it would take a quarter of the time of a run.
        """
        if self.plan.seed % RESTS:
            return
        await trio.sleep_until(
            max((each.at + each.lasts for each in self.plan.faults), default=0.0)
        )  # the clock is right
        users = [
            User(self.world, told, self.told, AT_REST + told.place, self.world.chance)
            for told in (*self.told[:1], *self.told[1:][-1:])
            if told.session_id and not (told.over or told.leaving)
        ]
        async with trio.open_nursery() as askers:
            for user in users:
                askers.start_soon(tried, turn(user, ASKS))
            waiting = [(user, self._call_of(user)) for user in users if await self._asks(user)]
            await self._compare_approvals(waiting)
            for user, call_id in waiting:
                for decision in ("allow", "deny"):
                    askers.start_soon(decide, user, call_id, decision)

    def _call_of(self, user: User) -> str:
        """Return the id of the call that the model has made: it may have been asked for a summary before."""
        asked = self.world.record.answers[user.name, 0]
        return f"{user.name}-0-0{AGAIN}{asked}" if asked > 1 else f"{user.name}-0-0"

    async def _compare_approvals(self, waiting: Collection[tuple[User, str]]) -> None:
        """Blame the list of a process that does not have exactly the calls that wait, once nothing moves."""
        for node in self.world.nodes.values():
            for tenant, principal in TENANTS.items():
                mine = {(user.session_id, call_id) for user, call_id in waiting if user.told.tenant == tenant}
                page = await node.service.as_(principal).approvals()
                found = {(each.session_id, each.call_id) for each in page.approvals}
                # The time of one may be over by now, or may have been over when the list was made.
                still = {
                    (user.session_id, call_id) for user, call_id in waiting if await self._waits_still(user)
                } & mine
                if not still <= found <= mine:
                    self.world.record.blame(f"{node.name} lists {sorted(found)}, and {sorted(mine)} wait for approval")

    async def _waits_still(self, user: User) -> bool:
        view = await user.read(call("read", session_id=user.session_id))
        return bool(view.state.pending_approvals)

    async def _asks(self, user: User) -> bool:
        """Return whether the call of a user waits for approval; its turn may end without one."""
        prompt = user.told.prompts
        while (asked := prompt.get(user.name)) is None or asked.ended is None:
            if await self._waits_still(user):
                return True
            await trio.sleep(0.02)
        return False

    async def _watch_followers(self, left: Left) -> None:
        """Wait until the followers have seen all, and blame those that have not."""
        for told in self.told[:FOLLOWED]:
            stored = left.events.get(told.session_id, ())
            if told.over or left.pages.get(told.session_id) is None:
                continue  # the log ends, and with it what can be read of it
            with trio.move_on_after(CATCH_UP):
                while not all(sight.is_complete(stored) for sight in told.sights[:1]):  # noqa: ASYNC110 - no event
                    await trio.sleep(0.1)
            for sight in told.sights[:1]:
                sight.check(stored)

    async def _left(self) -> Left:
        """Read all that is left."""
        pages: dict[str, HistoryPage | None] = {}
        records, roots = self._records(), {told.session_id: told for told in self.told if told.session_id}
        while more := {
            key: roots[of] for key, each in records.items() if (of := _parent(each)) in roots and key not in roots
        }:
            roots |= more
        async with trio.open_nursery() as nursery:
            for told in self.told:
                nursery.start_soon(self._read, told, pages)
            for session_id, each in records.items():
                if each.delegation is not None and session_id in roots:
                    nursery.start_soon(self._read_child, session_id, roots[session_id], pages)
        return Left(self.told, self.world.record, pages, self._events(), self._remains(), records, roots)

    async def _read_child(self, session_id: str, told: Told, pages: dict[str, HistoryPage | None]) -> None:
        pages[session_id] = await self._history(User(self.world, told, self.told, 0, self.world.chance), session_id)

    def _times(self, schedule: ScheduleView) -> int:
        """Return how often a schedule has sent its prompt: of the runs that it keeps no more the record alone knows."""
        fired = [run.due for run in schedule.runs if run.state == "fired"]
        if len(schedule.runs) < KEPT_RUNS:
            return len(fired)
        oldest = microseconds(schedule.runs[-1].due)
        return len(fired) + sum(due < oldest for due in self.world.record.fired.get(schedule.schedule_id, ()))

    async def _read(self, told: Told, pages: dict[str, HistoryPage | None]) -> None:
        """Read what is left of a session and its forks, and ask for the end of each of its keys again."""
        user = User(self.world, told, self.told, 0, self.world.chance)
        for session_id in (told.session_id, *told.forks):
            if session_id:
                pages[session_id] = await self._history(user, session_id)
        if pages.get(told.session_id) is not None and not told.over:
            if told.contexts:
                waiting = await user.read(call("inputs", session_id=told.session_id))
                told.waiting = frozenset(name_of(each.text) for each in waiting)
            if told.labels:
                view = await user.read(call("read", session_id=told.session_id))
                told.kept_labels = frozenset(view.state.labels)
            for each in (await user.read(call("schedules", session_id=told.session_id, limit=1000))).schedules:
                told.fired[each.prompt] = self._times(each)
        for key, act in told.asked.items() if not told.over else ():
            await tried(user.keyed(key, act))
        if not told.over:
            await give_again(user)
            await decide_again(user)

    async def _history(self, user: User, session_id: str) -> HistoryPage | None:
        try:
            return await user.read(lambda service: service.history(session_id, limit=1000))
        except SessionNotFoundError:
            return None

    def _records(self) -> Mapping[str, SessionRecord]:
        """Return the sessions that were not deleted, in the order in which they were made."""
        with closing(apsw.Connection(str(self.world.folder / FILE_NAME))) as db:
            sql = f"SELECT {raw(COLUMNS)} FROM sessions WHERE state < {DELETED} ORDER BY key"  # noqa: S608 - constants
            rows: list[Any] = db.execute(sql).fetchall()
        return {record.session_id: record for record in map(row_to_record, rows)}

    def _events(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        with closing(apsw.Connection(str(self.world.folder / FILE_NAME))) as db:
            rows: list[Any] = db.execute(
                "SELECT session_id, first_seq, seq FROM events JOIN sessions ON session = key ORDER BY session, seq"
            ).fetchall()
        found: dict[str, list[tuple[int, int]]] = {}
        for session_id, first, last in rows:
            found.setdefault(session_id, []).append((first, last))
        return found

    def _remains(self) -> Sequence[str]:
        """Return a line for each row that is left of what has ended."""
        with closing(apsw.Connection(str(self.world.folder / FILE_NAME))) as db:
            return [f"{what}: session {session}" for what, sql in REMAINS.items() for (session,) in db.execute(sql)]


def _parent(record: SessionRecord) -> str:
    return "" if record.delegation is None else record.delegation.session_id


async def _run(plan: Plan, folder: Path) -> Stage:
    (folder / "store").mkdir()
    (folder / "store" / FILE_NAME).write_bytes(empty_store())
    chance = random.Random(plan.seed)  # noqa: S311 - the seed tells all
    places = 1 + max((each.session for each in plan.operations), default=0)
    told = [Told(place, "default" if place < places - STRANGERS else "rival") for place in range(places)]
    main = trio.lowlevel.current_task()

    async def watch() -> None:
        await trio.sleep(END)
        stage.world.record.wrong += ["the run has not ended, and waits:", *waits(main)]
        tasks.cancel_scope.cancel()
        for node in stage.world.lives:  # tasks that wait for a disk cannot be cancelled
            node.kill()

    async with trio.open_nursery() as watching:
        async with trio.open_nursery() as tasks:
            world = World(chance, folder / "store", tasks, clustered=plan.nodes, compacts=plan.compacts)
            stage = Stage(plan, world, told)
            watching.start_soon(watch)
            await stage.run()
        watching.cancel_scope.cancel()
    return stage


def run(plan: Plan) -> Stage:
    """Run a plan: each time the same happens."""
    found: list[Stage] = []

    @hypothesis.settings(database=None, phases=[hypothesis.Phase.explicit], deadline=None)
    @hypothesis.example(None)
    @hypothesis.given(st.none())
    def once(_: None) -> None:  # Hypothesis seeds `random` and the schedule of trio
        with _memory() as folder, _no_collection():
            found.append(trio.run(_run, plan, folder, clock=Clock()))

    once()
    return found[0]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Look for no garbage: it takes a sixth of the time, and a run leaves little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _memory() -> Iterator[Path]:
    """Give a folder without a disk behind it, if the machine has one."""
    memory = Path("/dev/shm")  # noqa: S108 - a new folder is made there
    folder = Path(tempfile.mkdtemp(prefix="warren-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
