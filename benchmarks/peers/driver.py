"""Runs a peer's program in the peer's own environment: a command a line of JSON in, its result a line of JSON out.

`python -P driver.py PROGRAM.py`. A program of sessions has `BACKEND`, `opened(script, folder)`, which yields an object
with `turn(session)` and `remember(session, messages)`; any other has a function for each command it knows. `PACKAGES`
names what is compared. Ours is driven in the same way: what is measured is measured by the same lines.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ANSWER = "The answer is long enough to be one. " * 12


@dataclass(frozen=True)
class Script:
    """The fake model; every program does it through its framework's own interface to models.

    Attributes:
        delay: seconds that each of its calls takes.
        tools: whether it calls the tool `look_up` first, with `argument`, and answers then.
        url: the address of a server with the model, whose answer is `answer`; none for a fake in the process.
        patience: seconds for each part of a request; the five that some give to connecting are too few for a thousand.
    """

    delay: float = 0.0
    tools: bool = False
    prompt: str = "Go on, please."
    answer: str = ANSWER
    argument: str = "rabbits"
    found: str = "They live in a warren."
    tokens: int = 100
    url: str | None = None
    patience: float = 600.0


def load(path: Path) -> ModuleType:
    """Return the program in a file; its folder is not on the path, for some are called as what they import."""
    spec = importlib.util.spec_from_file_location("program", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no program")
    program = importlib.util.module_from_spec(spec)
    sys.modules["program"] = program  # before it runs: those who resolve its annotations look there
    spec.loader.exec_module(program)
    return program


class Driver:
    """The commands for programs of sessions."""

    def __init__(self, program: ModuleType) -> None:
        """Drive a program."""
        self._program = program

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command, the program's own or one of these."""
        task = command.pop("task")
        own = getattr(self._program, task, None)
        result: dict[str, Any] = (own or getattr(self, task))(**command)
        return result

    def versions(self) -> dict[str, Any]:
        """Return the versions of what is compared."""
        return {name: importlib.metadata.version(name) for name in self._program.PACKAGES}

    def turns(
        self,
        *,
        folder: str | None = None,
        sessions: int = 1,
        turns: int = 1,
        warm: int = 0,
        times: int = 1,
        **script: Any,
    ) -> dict[str, Any]:
        """Run turns in each of some sessions at once; return the seconds of all of them.

        `times` does all of it again with other sessions, and takes the mean: what is fast is over too soon.
        """

        async def work(peer: Any) -> dict[str, Any]:
            import anyio  # noqa: PLC0415 - only a program of sessions has it

            async def session(name: str, count: int) -> None:
                for _ in range(count):
                    said = await peer.turn(name)
                    assert said == ANSWER, said

            if warm:
                await session("warm", warm)
            begun = time.perf_counter()
            for again in range(times):
                async with anyio.create_task_group() as group:
                    for number in range(sessions):
                        group.start_soon(session, f"session-{again}-{number}", turns)
            return {"seconds": (time.perf_counter() - begun) / times}

        return self._run(work, folder, Script(**script))

    def growth(self, *, folder: str, lengths: list[int], samples: int) -> dict[str, Any]:
        """Return the median seconds of a turn at each length of its history, in messages."""

        async def work(peer: Any) -> dict[str, Any]:
            medians, length = [], 0
            for wanted in lengths:
                await peer.remember("session", wanted - length)
                seconds = []
                for _ in range(samples):
                    begun = time.perf_counter()
                    await peer.turn("session")
                    seconds.append(time.perf_counter() - begun)
                length = wanted + 2 * samples
                medians.append(statistics.median(seconds))
            return {"seconds": medians}

        return self._run(work, folder, Script())

    def _run(self, work: Any, folder: str | None, script: Script) -> dict[str, Any]:
        import anyio  # noqa: PLC0415

        async def opened() -> dict[str, Any]:
            where = None if folder is None else Path(folder)
            async with self._program.opened(script, where) as peer:
                result: dict[str, Any] = await work(peer)
                return result

        return anyio.run(opened, backend=self._program.BACKEND)


def main(path: str) -> None:
    """Serve until the input ends; what a framework prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a thousand sessions have as many connections
    driver = Driver(load(Path(path)))
    for line in sys.stdin:
        answer = {}
        with contextlib.suppress(BrokenPipeError):
            try:
                answer = driver.do(json.loads(line))
            except Exception as exc:  # noqa: BLE001 - it is shown on the page
                answer = {"error": f"{type(exc).__name__}: {exc}"}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
