"""A store, processes that are ended within turns of ten tool calls, and what has to be true of each turn afterwards."""

import itertools
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.promises.crash_world import Rows, in_database, in_file
from tests.promises.turn_servers import CALLS, RESTART, STEPS, Asked, Ran, Servers
from tests.support.checks import assert_valid_transcript
from tests.support.forked import STDERR, Forked, Forking
from tests.support.telling import Telling
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, ToolResultsMessage
from warren.storage.sqlite.file import FILE_NAME

# ruff: noqa: S608 - the queries are made of constants
OF_SESSION: Final = " WHERE session = (SELECT key FROM sessions WHERE session_id = ?) "
DONE: Final = "SELECT call_id FROM calls" + OF_SESSION + "AND state = 'done'"
MESSAGES: Final = "SELECT body FROM messages" + OF_SESSION + "ORDER BY position"
EVENTS: Final = "SELECT seq, body FROM events" + OF_SESSION + "ORDER BY seq"
LOST: Final = "not known: the process ended"


FORKING: Final = Forking(
    "tests.promises.turn_victim",
    (
        "tests.promises.crashing_gateway",
        "tests.promises.turn_servers",
        "warren.actors.tools.mcp.connection",
        "warren.actors.tools.mcp.pool",
        "warren.actors.tools.session_tools",
        "warren.storage.sqlite",
        "warren.transport.cluster.placed",
        "warren.transport.embed",
        "warren.transport.providers.remote",
        "mcp.client",
    ),
)
ROOT: Final = Path(__file__).parents[2]


@attrs.define(eq=False)
class Victim:
    """A process of the program."""

    process: Forked
    telling: Telling
    ready: float

    async def tell(self, **what: Any) -> None:
        """Give it a command."""
        await self.telling.say(json.dumps(what))

    async def answer(self, session_id: str, key: str) -> Any:
        """Ask for the answer of a turn, twice at once; both askers get the same."""
        for _ in range(2):
            await self.tell(session_id=session_id, key=key)
        told: list[Any] = []
        while len(told) < 2:
            each = await self.telling.must()
            if "error" in each:  # the lease of a process that has just died
                assert each["error"]["details"]["cause"] == "leased", each
                await trio.sleep(0.1)
                await self.tell(session_id=session_id, key=key)
            told += [each["answer"]] if "answer" in each else []
        assert told[0] == told[1]
        return told[0]


@attrs.define
class Ended:
    """A turn whose process was ended.

    Attributes:
        key: the key of its prompt.
        log: the length of the servers' log before the turn.
        session_id: the session.
        at: when the process was ended.
        kept: the calls whose results the store had then; None if another process may have gone on already.
        answers: the number of the model's answers that it had; None likewise.
        stored: whether the store knew of the prompt.
    """

    key: str
    log: int
    session_id: str = ""
    at: float = 0.0
    kept: frozenset[str] | None = None
    answers: int | None = None
    stored: bool = True
    answer: Any = None


@attrs.define
class World:
    """One store through many lives of its processes.

    Attributes:
        folder: of the store.
        servers: the model and the tools.
        database: the address of the store, if it is in a database.
        lease: the seconds of its leases.
        went_on: the seconds after which turns went on, by what ended their processes.
        hits: the points at which processes were ended.
    """

    folder: Path
    servers: Servers
    database: str | None
    lease: float
    went_on: list[float] = attrs.field(factory=list)
    hits: Counter[str] = attrs.field(factory=Counter)
    turns: int = 0

    @asynccontextmanager
    async def process(self, node: str | None = None) -> AsyncIterator[Victim]:
        """Run the program; it is ready."""
        place = self.database or str(self.folder / "store")
        settings = {"place": place, "lease": self.lease, "node": node}
        settings |= {"model": self.servers.model, "tools": self.servers.tools}
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        process = FORKING.popen([json.dumps(settings)], self.folder, env, stderr=STDERR)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            stdin, stdout = (trio.lowlevel.FdStream(os.dup(each.fileno())) for each in (process.stdin, process.stdout))
        try:
            async with stdin, stdout:
                telling = Telling(stdin, stdout)
                yield Victim(process, telling, (await telling.must())["ready"])
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.ended()

    @contextmanager
    def _rows(self) -> Iterator[Rows]:
        with (
            in_file(self.folder / "store" / FILE_NAME) if self.database is None else in_database(self.database) as rows
        ):
            yield rows

    async def count(self, victim: Victim) -> dict[str, int]:
        """Run a turn that nothing ends, and return how often it passes each point."""
        await victim.tell(key="counted")
        while "answer" not in (told := await victim.telling.must()):
            pass
        assert told["answer"][0] == "done counted"
        await victim.tell(count=True)
        return dict((await victim.telling.must())["passed"])

    async def end(self, victim: Victim, point: str, at: int, by: str, *, alone: bool) -> Ended:
        """Begin a turn in a process that ends at a point."""
        self.turns += 1
        ended = Ended(f"key-{self.turns}", len(self.servers.log))
        await victim.tell(key=ended.key, point=point, at=at, by=by)
        while (told := await victim.telling.next()) is not None:
            ended.session_id = told.get("session_id", ended.session_id)
            assert "error" not in told or told["error"]["details"]["cause"] == "shutting_down", told
            if "answer" in told:  # perhaps it did not come to the point
                await victim.tell(end=True)
            if "ends" in told:
                ended.at = told["when"]
                self.hits[told["ends"]] += 1
        with trio.fail_after(10):
            code = await victim.process.ended()
        assert code == (-signal.SIGKILL if by == "SIGKILL" else 0), f"it ended as {code}"
        with self._rows() as rows:
            if alone:
                messages = _messages(rows, ended.session_id)
                ended.kept = frozenset((*_results(messages), *(row[0] for row in rows(DONE, ended.session_id))))
                ended.answers = sum(isinstance(each, AssistantMessage) for each in messages)
            ended.stored = self._ended(rows, ended.session_id) or self._waits(rows, ended.session_id)
        return ended

    def _ended(self, rows: Rows, session_id: str) -> bool:
        return bool(rows("SELECT 1 FROM sessions WHERE session_id = ? AND turns > 0 AND turn IS NULL", session_id))

    def _waits(self, rows: Rows, session_id: str) -> bool:
        return bool(
            rows(
                "SELECT 1 FROM sessions s WHERE session_id = ? AND (turn IS NOT NULL OR EXISTS "
                "(SELECT 1 FROM inbox i WHERE i.session = s.key AND outcome IS NULL))",
                session_id,
            )
        )

    async def goes_on(self, ended: Ended, pid: int, since: float, within: float) -> None:
        """Wait for the end of a turn, of which nobody asks, and note when a process went on with it."""
        if ended.stored:
            with trio.fail_after(30), self._rows() as rows:
                while not self._ended(rows, ended.session_id):  # noqa: ASYNC110 - it is seen in the store alone
                    await trio.sleep(0.02)
        began = [each.at for each in self.servers.log[ended.log :] if each.process == pid]
        if ended.stored and began:
            self.went_on.append(began[0] - since)
            assert began[0] - since < within, f"it went on after {began[0] - since:.2f} s"

    async def check(self, ended: Ended, asked: Sequence[Victim]) -> None:
        """Ask for the answer in each process, and look at what was done: no kept result again, all else as allowed."""
        with trio.fail_after(30):
            answers = [await each.answer(ended.session_id, ended.key) for each in asked]
        answers += [ended.answer] if ended.answer is not None else []
        assert all(each == answers[0] for each in answers), answers
        ended.answer = answers[0]
        text, steps, calls, first_seq, last_seq = answers[0]
        assert text == f"done {ended.key}"
        log = self.servers.log[ended.log :]
        self._check_runs(ended, [each for each in log if isinstance(each, Ran) and each.session_id == ended.session_id])
        asked_for = Counter(each.step for each in log if isinstance(each, Asked) and each.prompt == ended.key)
        assert set(asked_for) == set(range(len(STEPS) + 1))
        assert sum(asked_for.values()) <= len(STEPS) + 2, f"more than one model call was made again: {asked_for}"
        if ended.answers is not None:
            again = [step for step, times in asked_for.items() if times > 1]
            assert all(step >= ended.answers for step in again), f"{again}, and {ended.answers} answers were kept"
        assert (steps, calls) >= (len(STEPS) + 1, 0)
        assert first_seq < last_seq

    def _check_runs(self, ended: Ended, runs: list[Ran]) -> None:
        times = Counter(each.call_id for each in runs)
        keys: dict[str, set[str]] = {}
        for each in runs:
            keys.setdefault(each.call_id, set()).add(each.key)
        assert all(len(each) == 1 for each in keys.values()), f"a call has another key in another process: {keys}"
        assert len(set.union(*keys.values())) == len(keys), "two calls have one key"
        again = {call_id for call_id, count in times.items() if count > 1}
        assert len({call_id.split("-")[0] for call_id in again}) <= 1, f"calls of two steps ran again: {again}"
        assert all(times[call_id] <= (1 if RESTART[CALLS[call_id]] == "report" else 2) for call_id in CALLS), times
        with self._rows() as rows:
            messages, events = _messages(rows, ended.session_id), _events(rows, ended.session_id)
        assert_valid_transcript(messages)
        results = _results(messages)
        assert set(results) == set(CALLS)
        for call_id, content in results.items():
            lost = content.startswith(LOST)
            assert lost or content == f"{CALLS[call_id]} ran"
            assert times[call_id] or lost, f"{call_id} did not run"
            assert not lost or RESTART[CALLS[call_id]] == "report"
        lost_calls = {call_id.split("-")[0] for call_id, content in results.items() if content.startswith(LOST)}
        assert len(lost_calls | {call_id.split("-")[0] for call_id in again}) <= 1
        kept = set(ended.kept or ())
        kinds = [event["type"] for _, event in events]
        assert kinds.count("run_started") == kinds.count("run_completed") == 1
        assert (kinds[0], kinds[-1], "run_failed" in kinds) == ("run_started", "run_completed", False)
        for _, event in events:
            if event["type"] == "turn_resumed":
                told = [each for seq, each in events if seq <= event["kept_seq"]]
                kept |= {each["id"] for each in told if each["type"] == "tool_result_received"}
        assert not kept & again, f"calls with a kept result ran again: {kept & again}"
        assert not {each for each in ended.kept or () if results[each].startswith(LOST)}


def _messages(rows: Rows, session_id: str) -> list[Message]:
    return [codec.decode_message(body.encode()) for (body,) in rows(MESSAGES, session_id)]


def _results(messages: Sequence[Message]) -> dict[str, str]:
    """Return the texts of all results of tools, by their calls."""
    told = (message for message in messages if isinstance(message, ToolResultsMessage))
    return {each.tool_use_id: each.content for message in told for each in message.results}


def _events(rows: Rows, session_id: str) -> list[tuple[int, dict[str, Any]]]:
    return [(seq, json.loads(body)) for seq, body in rows(EVENTS, session_id)]


def chosen(passed: dict[str, int], chance: random.Random, number: int) -> list[tuple[str, int, str]]:
    """Return points to end a process at, each with the number of the pass and the signal: other ones first."""
    names = sorted(passed)
    chance.shuffle(names)
    picked = [(name, chance.randint(1, passed[name])) for name, _ in zip(names * number, range(number), strict=False)]
    return [(*each, by) for each, by in zip(picked, itertools.cycle(("SIGKILL", "SIGTERM")), strict=False)]


def every(passed: dict[str, int]) -> list[tuple[str, int, str]]:
    """Return all points, all passes of each, and both signals."""
    return [
        (name, at, by) for name in sorted(passed) for at in range(1, passed[name] + 1) for by in ("SIGKILL", "SIGTERM")
    ]
