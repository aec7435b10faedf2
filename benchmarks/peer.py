"""Other people's programs for the same purpose, each in a process and an environment of its own, asked in turn.

The environment is made in `.peers/` from the pins in `peers/NAME.txt`, once, and again when they change. The program is
`peers/NAME.py`; what it is asked is in `peers/driver.py`.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import attrs

PROGRAMS: Final = Path(__file__).parent / "peers"
ENVIRONMENTS: Final = Path(__file__).parent.parent / ".peers"
OURS: Final = "warren"
FRAMEWORKS: Final = ("openai_agents", "google_adk", "langgraph", "pydantic_ai")
PATIENCE: Final = 300.0
"""Seconds that one command may take."""
_NUMBERS: Final = count()


class PeerError(Exception):
    """A peer cannot be installed, or did not do what it was asked; the text says why and names no path."""


class Peer:
    """A running program of a peer."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        """Talk to a process that runs the driver."""
        self.name = name
        self._process = process

    def ask(self, task: str, *, patience: float = PATIENCE, **command: Any) -> dict[str, Any]:
        """Run a command. Raises PeerError where it fails or takes more than `patience` seconds; it is dead then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(patience, end)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"task": task, **command}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        answer: dict[str, Any] = json.loads(line or "{}")
        if late.is_set():
            raise PeerError(f"did not finish within {patience:g} s")
        if not line or "error" in answer:
            raise PeerError(_public(answer.get("error", "the process ended")))
        return answer


@contextmanager
def peer(name: str) -> Iterator[Peer]:
    """Run a peer's program. Raises PeerError where its environment cannot be made."""
    python = sys.executable if name == OURS else str(_environment(name) / "bin" / "python")
    command = [python, "-P", str(PROGRAMS / "driver.py"), str(PROGRAMS / f"{name}.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield Peer(name, process)
        finally:
            process.kill()


@attrs.define
class Beside:
    """Peers that are asked the same, in turn.

    Attributes:
        versions: of each peer, the packages that are compared.
        failed: the peers that dropped out, and why.
    """

    versions: dict[str, dict[str, str]] = attrs.field(factory=dict)
    failed: dict[str, str] = attrs.field(factory=dict)
    _running: dict[str, Peer] = attrs.field(factory=dict)

    def ask(
        self,
        task: str,
        *,
        rounds: int = 1,
        durable: bool = False,
        more: Mapping[str, Any] | None = None,
        **command: Any,
    ) -> dict[str, list[Any]]:
        """Ask all of them, one after the other, `rounds` times; return what each said.

        In turn, because the machine's speed drifts. `durable` gives each a new folder; `more` is for ours alone. One
        that fails is not asked again, and is missing.
        """
        said: dict[str, list[Any]] = {name: [] for name in self._running}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rounds):
                for name in [*self._running]:
                    where = {"folder": f"{folder}/{next(_NUMBERS)}"} if durable else {}
                    own = {} if more is None or name != OURS else more
                    self._note(name, said, task, {**command, **where, **own})
        return {name: each for name, each in said.items() if name in self._running}

    def _note(self, name: str, said: dict[str, list[Any]], task: str, command: dict[str, Any]) -> None:
        try:
            said[name].append(self._running[name].ask(task, **command))
        except PeerError as exc:
            if name == OURS:
                raise
            self.failed[name] = str(exc)
            del self._running[name]


@contextmanager
def beside(names: Iterable[str]) -> Iterator[Beside]:
    """Run ours and some peers; one that cannot be run is among the failed."""
    together = Beside()
    with ExitStack() as stack:
        for name in (OURS, *names):
            try:
                running = stack.enter_context(peer(name))
                together.versions[name] = running.ask("versions")
                together._running[name] = running  # noqa: SLF001 - this is how one is made
            except PeerError as exc:
                together.failed[name] = str(exc)
        yield together


@attrs.frozen
class Comparison:
    """Ours beside the fastest peer, in seconds.

    Attributes:
        fastest: the peer whose median is the least; None where none could be run.
        ratio: the median of its seconds over ours, round by round.
        spread: the least and the greatest of these ratios.
        seconds: everybody's median.
    """

    fastest: str | None
    ratio: float
    spread: tuple[float, float]
    seconds: dict[str, float]

    @classmethod
    def of(cls, said: Mapping[str, list[Any]]) -> "Comparison":
        """Compare what was said in the rounds of `ask`."""
        rounds = {name: [each["seconds"] for each in answers] for name, answers in said.items()}
        seconds = {name: statistics.median(each) for name, each in rounds.items()}
        fastest = min((name for name in seconds if name != OURS), key=seconds.__getitem__, default=None)
        if fastest is None:
            return cls(None, float("nan"), (float("nan"), float("nan")), seconds)
        ratios = [theirs / ours for theirs, ours in zip(rounds[fastest], rounds[OURS], strict=True)]
        return cls(fastest, statistics.median(ratios), (min(ratios), max(ratios)), seconds)


def _environment(name: str) -> Path:
    """Return a peer's environment; make it where there is none of these pins."""
    pins = PROGRAMS / f"{name}.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = ENVIRONMENTS / f"{name}-{digest}-{sys.version_info.major}.{sys.version_info.minor}"
    ready = folder / "ready"
    if not ready.exists():
        venv.create(folder, clear=True, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(pins)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerError(_public("cannot be installed: " + (done.stderr.strip().splitlines() or ["?"])[-1]))
        ready.touch()
    return folder


def _public(text: str) -> str:
    """Return the beginning of an error's first line, without this machine's folders."""
    first = (text.strip().splitlines() or ["?"])[0]
    return first.replace(str(ENVIRONMENTS), ".peers").replace(tempfile.gettempdir(), "TMP")[:200]
