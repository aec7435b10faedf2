"""What does a turn cost if the model is behind HTTP? Warren's own processor time over that of bare h11 on trio.

The model server is a process of its own (`model_server.py`) on the same machine; its share is printed. Bare h11 sends
the very bytes of a turn's request and reads the answer, on one connection for each session; it knows nothing of
events, messages or sessions. The sessions of a round are forks of one that has the wanted history, so that they do not
grow from round to round; their first turn is not counted.
"""

import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import attrs
import h11
import trio

from benchmarks.gateway_server import processor_time
from benchmarks.model_server import ModelServer, started
from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.conversation.messages import AssistantMessage, TextBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece
from warren.transport.cli.process.tuning import allow_files, tune

CHUNK: Final = 64 * 1024
PROMPT: Final = ("Go on with the story, please, and do not stop before its end. " * 5)[:250]
FILLER: Final = ("It went on as stories go, from one thing to the next one. " * 5)[:250]
MODEL: Final = "gpt-benchmark"
SHORT, LONG = (10, 25), (500, 5)
"""Pieces of an answer, and characters of each."""
ROUNDS: Final = 3
LATE_SECONDS: Final = 4.0
IDEAL: Final = 0.25
"""Seconds that 5 turns take in which nothing but the model takes time."""
WALLS: Final = 3
STEP: Final = 0.001


@attrs.frozen
class Case:
    """A kind of turns to measure.

    Attributes:
        sessions: number of sessions that take turns at once.
        history: messages of each when the turns begin.
        pieces: pieces of an answer, and characters of each.
        tls: whether the model is behind TLS.
        turns: turns of each session in a round.
        repeat: how often a round does all of that, with other sessions.
    """

    sessions: int
    history: int = 20
    pieces: tuple[int, int] = SHORT
    tls: bool = False
    turns: int = 3
    repeat: int = 1

    @property
    def name(self) -> str:
        """A name for the page."""
        tls = ", TLS" if self.tls else ""
        return f"{self.sessions} sessions, history {self.history}, {self.pieces[0]} pieces{tls}"


ONE: Final = Case(1, turns=5, repeat=20)
LATE_HISTORY: Final = Case(1, history=3_000, turns=5, repeat=4)
CASES: Final = (
    ONE,
    Case(100),
    Case(1_000, turns=1),
    attrs.evolve(ONE, history=40),
    attrs.evolve(ONE, history=500, repeat=10),
    LATE_HISTORY,
    attrs.evolve(ONE, pieces=LONG, repeat=4),
    Case(100, pieces=LONG, turns=1),
    attrs.evolve(ONE, tls=True),
    Case(100, tls=True),
)
OVER_BARE: Final = CASES[:3]
"""The cases with a goal."""


@attrs.frozen
class Filler:
    """A model in this process that makes a history."""

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Return the answer."""
        del request, emit
        await trio.lowlevel.checkpoint()
        return ModelReply(AssistantMessage((TextBlock(FILLER),)), Usage(1, 1))


@attrs.define
class Spent:
    """The processor time of all turns of a round in seconds, of this process and of the server's."""

    own: float = 0.0
    server: float = 0.0
    turns: int = 0


@asynccontextmanager
async def _service(url: str, folder: Path | None = None) -> AsyncIterator[SessionService]:
    """Run Warren with the model at an address, and with one that only fills histories."""
    store = None if folder is None else StoreConfig(folder)
    config = Config(store=store, model=MODEL, provider="openai")
    environ = {"OPENAI_BASE_URL": f"{url}/v1"}
    async with open_supervisor(config, providers={"filler": Filler()}, environ=environ) as service:
        yield service


async def _filled(service: SessionService, messages: int) -> str:
    """Return a session with a history of some length."""
    session_id = (await service.create_session(None)).session_id
    for _ in range(messages // 2):
        await service.start_turn(session_id, PROMPT, model="filler", provider="filler")
    return session_id


async def _turns(service: SessionService, session_id: str, turns: int) -> None:
    for _ in range(turns):
        await service.start_turn(session_id, PROMPT)


async def _forks(service: SessionService, original: str, count: int) -> list[str]:
    """Return forks that have their first turn behind them, all of it at once: each has a connection then."""
    forks = [(await service.fork(original)).state.session_id for _ in range(count)]
    async with trio.open_nursery() as nursery:
        for session_id in forks:
            nursery.start_soon(_turns, service, session_id, 1)
    return forks


async def _ours(service: SessionService, original: str, case: Case, server: ModelServer) -> Spent:
    """Measure the turns of a round."""
    spent = Spent()
    for _ in range(case.repeat):
        forks = await _forks(service, original, case.sessions)
        own, theirs = time.process_time(), processor_time(server.pid)
        async with trio.open_nursery() as nursery:
            for session_id in forks:
                nursery.start_soon(_turns, service, session_id, case.turns)
        spent.own += time.process_time() - own
        spent.server += processor_time(server.pid) - theirs
        spent.turns += case.sessions * case.turns
        for session_id in forks:
            await service.archive(session_id)
    return spent


@attrs.define
class Bare:
    """A connection of plain h11 that makes one request again and again."""

    stream: trio.abc.Stream
    request: h11.Request
    body: bytes
    connection: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))

    async def ask(self, times: int) -> None:
        """Send the request and read the answer, some times."""
        for _ in range(times):
            await self._ask()

    async def _ask(self) -> bytes:
        connection, parts = self.connection, []
        sent = (self.request, h11.Data(data=self.body), h11.EndOfMessage())
        await self.stream.send_all(b"".join(connection.send(event) or b"" for event in sent))
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await self.stream.receive_some(CHUNK)))
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                connection.start_next_cycle()
                return b"".join(parts)


async def _last_body(server: ModelServer) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        headers = [("Host", "127.0.0.1"), ("Content-Length", "0")]
        return await Bare(stream, h11.Request(method="GET", target="/last", headers=headers), b"")._ask()  # noqa: SLF001


async def _bare_connection(server: ModelServer, case: Case) -> trio.abc.Stream:
    port = server.tls_port if case.tls else server.port
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    if not case.tls:
        return stream
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    return trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)


@asynccontextmanager
async def _bare(server: ModelServer, case: Case, url: str, body: bytes) -> AsyncIterator[list[Bare]]:
    """Connect, once for each session, and make one request."""
    headers = [
        ("Host", f"127.0.0.1:{server.port}"),
        ("Accept", "text/event-stream"),
        ("Accept-Encoding", "gzip, deflate"),
        ("User-Agent", "bare"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    ]
    target = "/" + url.split("/", 3)[3] + "/v1/chat/completions"
    request = h11.Request(method="POST", target=target, headers=headers)
    made = [Bare(await _bare_connection(server, case), request, body) for _ in range(case.sessions)]
    async with trio.open_nursery() as nursery:
        for each in made:
            nursery.start_soon(each.ask, 1)
    try:
        yield made
    finally:
        for each in made:
            await trio.aclose_forcefully(each.stream)


async def _theirs(connections: list[Bare], case: Case) -> float:
    """Return the seconds of processors that a request takes."""
    begun = time.process_time()
    for _ in range(case.repeat):
        async with trio.open_nursery() as nursery:
            for each in connections:
                nursery.start_soon(each.ask, case.turns)
    return (time.process_time() - begun) / case.repeat / case.turns / case.sessions


@attrs.frozen
class Measured:
    """The rounds of a case, in seconds of processors a turn: ours, bare h11's and those of the server for ours."""

    ours: list[float]
    bare: list[float]
    server: list[float]

    @property
    def over_bare(self) -> tuple[float, tuple[float, float]]:
        """The median of the ratios, and their spread."""
        return _ratio(self.ours, self.bare)

    def figures(self) -> dict[str, float]:
        """Return the medians."""
        ours, bare, server = (statistics.median(each) for each in (self.ours, self.bare, self.server))
        return {
            "own_ms": round(1000 * ours, 3),
            "bare_ms": round(1000 * bare, 3),
            "over_bare": round(self.over_bare[0], 2),
            "server_ms": round(1000 * server, 3),
        }


def _ratio(ours: list[float], theirs: list[float]) -> tuple[float, tuple[float, float]]:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), (min(ratios), max(ratios))


async def _case(server: ModelServer, case: Case, rounds: int) -> Measured:
    url = server.url(*case.pieces, tls=case.tls)
    measured = Measured([], [], [])
    async with _service(url) as service:
        original = await _filled(service, case.history)
        await service.archive((await _forks(service, original, 1))[0])
        async with _bare(server, case, url, await _last_body(server)) as connections:
            for _ in range(rounds):
                spent = await _ours(service, original, case, server)
                measured.ours.append(spent.own / spent.turns)
                measured.server.append(spent.server / spent.turns)
                measured.bare.append(await _theirs(connections, case))
    return measured


@attrs.frozen
class Growth:
    """The seconds of processors of a turn at exchange 20 and at exchange 1,500, and of bare h11 for the same bytes."""

    ours: list[tuple[float, float]] = attrs.field(factory=list)
    bare: list[tuple[float, float]] = attrs.field(factory=list)

    def figures(self) -> dict[str, float]:
        """Return the medians."""
        sides = {"own": self.ours, "bare": self.bare}
        times = {
            f"{side}_ms_at_exchange_{exchange}": round(1000 * statistics.median(pair[place] for pair in pairs), 3)
            for side, pairs in sides.items()
            for place, exchange in enumerate((20, 1_500))
        }
        return times | {f"{side}_late_over_early": round(_late_over_early(each)[0], 2) for side, each in sides.items()}

    @property
    def beyond_bare(self) -> list[tuple[float, float]]:
        """The seconds that are ours: the kernel takes the bytes of the long request from everybody alike."""
        pairs = zip(self.ours, self.bare, strict=True)
        return [(ours[0] - bare[0], ours[1] - bare[1]) for ours, bare in pairs]


def _late_over_early(pairs: list[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
    return _ratio([late for _, late in pairs], [early for early, _ in pairs])


async def _growth(server: ModelServer, rounds: int) -> Growth:
    """Measure turns at exchange 20 and at exchange 1,500, and bare h11 with the bytes of their requests, in turn."""
    cases = attrs.evolve(ONE, history=40, repeat=8), attrs.evolve(LATE_HISTORY, repeat=4)
    url, growth = server.url(*SHORT), Growth()
    async with _service(url) as service:
        originals = [await _filled(service, case.history) for case in cases]
        for _ in range(rounds):
            ours, bare = [], []
            for original, case in zip(originals, cases, strict=True):
                spent = await _ours(service, original, case, server)
                ours.append(spent.own / spent.turns)
                async with _bare(server, case, url, await _last_body(server)) as connections:
                    bare.append(await _theirs(connections, case))
            growth.ours.append((ours[0], ours[1]))
            growth.bare.append((bare[0], bare[1]))
    return growth


@attrs.frozen
class Wall:
    """The seconds in which 1,000 sessions take 5 turns each; those of processors, of this process and of the server."""

    wall: float
    own: float
    server: float


async def _wall(server: ModelServer, folder: Path) -> Wall:
    """Have 1,000 stored sessions take 5 turns each, the first with their creation, on a model that takes 50 ms."""

    async def session() -> None:
        session_id = (await service.create_session(PROMPT)).session_id
        await _turns(service, session_id, 4)

    async with _service(server.url(*SHORT, 50), folder) as service:
        begun, own, theirs = time.perf_counter(), time.process_time(), processor_time(server.pid)
        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(session)
        ended, own = time.perf_counter(), time.process_time() - own
        return Wall(ended - begun, own, processor_time(server.pid) - theirs)


class Passes(trio.abc.Instrument):
    """The processor time of each pass of the loop: it makes the loop late, and another program does not change it."""

    def __init__(self) -> None:
        """Begin with the next pass."""
        self.seconds: list[float] = []
        self._begun = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        """Begin a pass."""
        del timeout
        self._begun = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        """End a pass."""
        del timeout
        self.seconds.append(time.thread_time() - self._begun)


def _p99(seconds: list[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return 1000 * statistics.quantiles(seconds, n=100)[98]


async def _late(server: ModelServer) -> tuple[float, float]:
    """Return how late the loop is in milliseconds, p99, while 100 sessions of 1,500 exchanges take turns.

    The second figure is the processor time of a pass of the loop, p99: all of the first one that is ours.
    """
    late: list[float] = []
    passes = Passes()

    async def keep_busy(session_id: str) -> None:
        while True:
            await _turns(service, session_id, 1)

    async with _service(server.url(*SHORT)) as service:
        forks = await _forks(service, await _filled(service, 3_000), 100)
        trio.lowlevel.add_instrument(passes)
        with trio.move_on_after(LATE_SECONDS):
            async with trio.open_nursery() as nursery:
                for session_id in forks:
                    nursery.start_soon(keep_busy, session_id)
                while True:
                    begun = time.perf_counter()
                    await trio.sleep(STEP)
                    late.append(time.perf_counter() - begun - STEP)
    return _p99(late), _p99(passes.seconds)


def _cases(server: ModelServer, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], list[Goal]]:
    figures, goals = {}, []
    for case in CASES:
        if not wanted(case.name):
            continue
        measured = trio.run(_case, server, case, ROUNDS)
        figures[case.name] = measured.figures()
        if case in OVER_BARE:
            ratio, spread = measured.over_bare
            what = f"turn over HTTP, {case.sessions} session(s), own processor time over bare h11"
            goals.append(Goal(what, ratio, "<=", 4, spread))
    return figures, goals


def _whole(server: ModelServer, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], list[Goal]]:
    """Measure what is no case."""
    figures: dict[str, Any] = {}
    goals = []
    if wanted("growth"):
        growth = trio.run(_growth, server, ROUNDS)
        ratio, spread = _late_over_early(growth.beyond_bare)
        figures["growth"] = growth.figures()
        what = "turn over HTTP, exchange 1,500 over exchange 20, own processor time beyond bare h11's"
        goals.append(Goal(what, ratio, "<=", 1.3, spread))
    if wanted("wall"):
        with tempfile.TemporaryDirectory() as name:
            runs = [trio.run(_wall, server, Path(name) / str(number)) for number in range(WALLS)]
        walls = [run.wall / IDEAL for run in runs]
        figures["1,000 sessions x 5 turns, 50 ms"] = {
            "wall_s": round(statistics.median(run.wall for run in runs), 2),
            "own_s": round(statistics.median(run.own for run in runs), 2),
            "server_s": round(statistics.median(run.server for run in runs), 2),
        }
        what = "1,000 sessions x 5 turns over HTTP, 50 ms, durable, wall over ideal"
        goals.append(Goal(what, statistics.median(walls), "<=", 8, (min(walls), max(walls))))
    if wanted("late"):
        late, own = trio.run(_late, server)
        figures["100 sessions of 1,500 exchanges"] = {"processor_ms_of_a_pass_p99": round(own, 2)}
        goals.append(Goal("loop late p99, 100 sessions of 1,500 exchanges over HTTP, ms", late, "<=", 5))
    return figures, goals


def main(*patterns: str) -> None:
    """Print milliseconds of processors a turn and the ratios.

    `patterns` of names, as in `"1 sessions*"` or `*TLS`, say which cases are run, and which of `growth`, `wall` and
    `late`; without patterns all of it is run.
    """

    def wanted(name: str) -> bool:
        return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)

    allow_files()
    tune()
    with started(tls=any(case.tls and wanted(case.name) for case in CASES)) as server:
        if server.authority is not None:
            os.environ["SSL_CERT_FILE"] = str(server.authority)
        measured = [measure(server, wanted) for measure in (_cases, _whole)]
    figures = {name: each for found, _ in measured for name, each in found.items()}
    report(
        "What does a turn cost if the model is behind HTTP?", figures, [goal for _, goals in measured for goal in goals]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
