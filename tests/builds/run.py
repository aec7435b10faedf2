"""Run the contract of each build in an environment of its own: `python tests/builds/run.py [BUILD...]`, `make builds`.

The wheel is built once. For each build a fresh virtual environment gets it with that build's extras, pytest and
hypothesis, and nothing else; the contract runs; then the extras of the surfaces and of the tools are added, and it runs
through them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILDS: Final = {
    "A": (),
    "B": ("session-store",),
    "C": ("memory-store",),
    "D": ("session-compaction",),
    "E": ("session-store", "memory-store"),
    "F": ("session-store", "memory-store", "session-compaction"),
}
SURFACES: Final = ("cli", "client", "gateway", "jwt", "load", "mcp", "metrics", "postgres", "skills", "tools", "traces")
TOOLS: Final = ("pytest", "hypothesis")
SERVED: Final = tuple(f"tests/builds/test_{name}.py" for name in ("wheel", "surfaces", "tools"))
PINS: Final = ("run.txt", "test.txt")
PIP: Final = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def main(names: Sequence[str]) -> int:
    """Run the builds that are named, by default all six; return 0 where all of them hold."""
    unknown = set(names) - set(BUILDS)
    if unknown:
        sys.stderr.write(f"unknown builds: {', '.join(sorted(unknown))}; there are {', '.join(BUILDS)}\n")
        return 2
    with tempfile.TemporaryDirectory() as work:
        wheel = build_wheel(Path(work))
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            held = dict(workers.map(lambda name: (name, holds(name, wheel, Path(work))), names or BUILDS))
    failed = [name for name, well in held.items() if not well]
    say(f"builds that failed: {', '.join(failed)}" if failed else "every build holds")
    return 1 if failed else 0


def build_wheel(work: Path) -> Path:
    """Build the wheel from the tree as it is; what was built before does not get in."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    python(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(ROOT))
    (wheel,) = work.glob("*.whl")
    return wheel


def holds(name: str, wheel: Path, work: Path) -> bool:
    """Make one build's environment and run its tests, without and with the surfaces."""
    began, folder, extras = time.monotonic(), work / name, BUILDS[name]
    python("-m", "venv", "--without-pip", str(folder))
    install(folder, wheel, extras, TOOLS)
    alone = run_tests(folder, extras, "tests/builds")
    install(folder, wheel, (*extras, *SURFACES))
    served = run_tests(folder, (*extras, *SURFACES), *SERVED)
    shutil.rmtree(folder)
    listed = f"warren[{','.join(extras)}]" if extras else "warren"
    for done in (alone, served):
        say(f"{name} {listed}: {done.stdout if done.returncode else done.stdout.splitlines()[-1]}")
    say(f"{name} took {time.monotonic() - began:.0f} s")
    return alone.returncode == served.returncode == 0


def install(folder: Path, wheel: Path, extras: Sequence[str], tools: Sequence[str] = ()) -> None:
    """Install the wheel with extras, at the versions that are pinned."""
    pins = [word for name in PINS for word in ("--constraint", str(ROOT / "requirements" / name))]
    target = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    python(*PIP, "--python", str(folder / "bin" / "python"), "install", "--no-compile", *pins, target, *tools)


def run_tests(folder: Path, extras: Sequence[str], *tests: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of the builds with an environment's Python."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    command = [str(folder / "bin" / "python"), "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environ | {"WARREN_BUILD": ",".join(extras)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def python(*arguments: str) -> None:
    """Run this Python; its failure ends the run with its own words."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def say(text: str) -> None:
    """Tell at once, also in a pipe."""
    sys.stdout.write(f"==> {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
