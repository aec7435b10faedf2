"""Every released line of Meerkat's SDKs, and Meerkat's own tests, with `warren rpc --contract` in place of `rkat-rpc`.

The clients for Python come from the package index by name, the client for TypeScript and the tests from a clone of
Meerkat's repository: neither the packages nor npm have them. `WARREN_MEERKAT_CLONE` names the clone.
"""

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.conftest import ROOT
from tests.transport.cli.process import clean_environ
from tests.transport.providers.byte_server import HEAD, Request, chunk, event, serve
from warren.transport.rpc.contracts.meerkat.versions import LINES

CLONE: Final = "WARREN_MEERKAT_CLONE"
DRIVER: Final = ROOT / "tests" / "support" / "meerkat_driver.py"
CLIENTS: Final = (
    *("0.4.0", "0.4.13", "0.5.0", "0.5.2", "0.6.0", "0.6.34", "0.7.0", "0.7.31"),
    *("0.8.0", "0.8.1", "0.8.10", "0.8.11", "0.8.52", "0.9.0", "0.9.6"),
)
"""The first and the last of each line, and those between which the protocol changed."""
FIRST_WITH_PATH: Final = 8
"""From this line on the TypeScript tests want the program's path in the environment; before it they look in PATH."""

LEFT_OUT: Final = (
    (
        r"live_mob_stream|live mob stream|swarm.probe",
        "mobs: agents that Meerkat runs side by side",
        "not offered",
    ),
    (r"runtime_accept", "`runtime/accept` and its like", "not offered; Meerkat took them away in 0.6"),
    (r"scenario_(57|58|64)_live", "live audio", "not offered"),
    (r"image_provider_params|^Scenario (7[5-9]|8[0-2]):", "images", "not offered"),
    (r"rkat_capabilities_command", "the program `rkat`", "only `rkat-rpc` is replaced"),
    (
        r"^replays buffered standalone|terminal_error on the packaged standalone|^drains late tail turn",
        "streams of a scripted server",
        "Meerkat's tests bring that server along",
    ),
)
"""Names of Meerkat's tests that are left out, as patterns, what they are about, and why."""


@attrs.frozen
class Outcome:
    """How one of Meerkat's tests ended."""

    name: str
    passed: bool
    problem: str = ""


def install(target: Path, *packages: str) -> None:
    """Install packages from the index into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
    command += [str(target), *packages]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr


def program(folder: Path, line: str) -> Path:
    """Write a program in the place of `rkat-rpc` for a version, in a folder of its own."""
    place = folder / "bin"
    place.mkdir()
    path = place / "rkat-rpc"
    command = Path(sys.executable).with_name("warren")
    path.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH {command} rpc --contract {line} "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_page_says_what_is_left_out() -> None:
    """`docs/stdio.md` has the versions that are used and the tests that are left out, with the reasons."""
    page = " ".join((ROOT / "docs" / "stdio.md").read_text(encoding="utf-8").split())
    assert all(f"| {about} | {why} |" in page for _, about, why in LEFT_OUT)
    assert f"{', '.join(CLIENTS[:-1])} and {CLIENTS[-1]}" in page


def line_of(version: str) -> str:
    """Return the line of a version, as `--contract` names it."""
    return ".".join(version.split(".")[:2])


@pytest.mark.soak
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("version", CLIENTS)
def test_every_released_client_works(version: str, tmp_path: Path) -> None:
    """A program that uses all that a version of the Python client has runs to its end."""
    install(tmp_path / "sdk", f"meerkat-sdk=={version}")
    # The first releases of 0.8 differ from the newest: they are told apart by their whole version.
    path = program(tmp_path, version)
    ended = subprocess.run(
        [sys.executable, str(DRIVER), str(path), str(tmp_path)],
        env=clean_environ() | {"PYTHONPATH": str(tmp_path / "sdk")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def clone() -> Path:
    """Return the clone of Meerkat's repository; skip the test if there is none."""
    named = os.environ.get(CLONE)
    if not named:
        pytest.skip(f"set {CLONE} to a clone of Meerkat's repository: no package has its tests")
    return Path(named)


def git(repository: Path, *args: str) -> bytes:
    """Return what a git command writes."""
    return subprocess.run(
        [shutil.which("git") or "git", "-C", str(repository), *args], check=True, capture_output=True, timeout=120
    ).stdout


def tag_for(repository: Path, version: tuple[int, ...]) -> str:
    """Return the newest release in the clone up to a version; a clone may be older than the client."""
    tags = git(repository, "tag", "--list", "v0.*").decode().split()
    known = {tuple(map(int, tag[1:].split("."))): tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)}
    return known[max(each for each in known if each <= version)]


def unpack(repository: Path, tree: str, folder: Path) -> None:
    """Write a folder of a release to disk."""
    with tarfile.open(fileobj=io.BytesIO(git(repository, "archive", tree))) as archive:
        archive.extractall(folder, filter="data")


def check(outcomes: Sequence[Outcome]) -> None:
    """Require that some passed, and all of them but those that are left out."""
    wanted = [each for each in outcomes if not any(re.search(form, each.name) for form, *_ in LEFT_OUT)]
    assert wanted
    assert [each for each in wanted if not each.passed] == []


@asynccontextmanager
async def model_server() -> AsyncIterator[str]:
    """Serve Anthropic's protocol; the model answers with all the words that it was sent, its system prompt first.

    Meerkat's tests look for words in answers that a model can only have from the conversation.
    """

    async def answer(request: Request, stream: trio.SocketStream) -> None:
        said = [*words(request.body.get("system"))]
        said += [word for message in request.body["messages"] for word in words(message["content"])]
        text = {"type": "text_delta", "text": " ".join(said)}
        usage = {"input_tokens": 1, "output_tokens": 1}
        parts = [
            {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": text},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
        await stream.send_all(HEAD + b"".join(chunk(event(part)) for part in parts) + b"0\r\n\r\n")

    async with serve(answer) as url:
        yield url


def words(content: Any) -> list[str]:
    """Return the texts of a message's content."""
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or () if block.get("type") == "text"]


async def run(command: Sequence[str], folder: Path, **environ: str) -> str:
    """Run one of Meerkat's suites beside a model server; return what it wrote."""
    async with model_server() as url:
        keys = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url, "WARREN_STORE": str(folder / "store")}
        ended = await trio.run_process(
            command,
            cwd=folder,
            env=clean_environ() | keys | environ,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return ended.stdout.decode()


@pytest.mark.soak
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("version", LINES.values(), ids=lambda version: ".".join(map(str, version)))
async def test_meerkats_tests_of_the_python_client_pass(version: tuple[int, ...], tmp_path: Path) -> None:
    """The tests in `sdks/python/tests/test_e2e*.py` passes with the client from the index, but what is left out."""
    repository, number = clone(), ".".join(map(str, version))
    tag = tag_for(repository, version)
    unpack(repository, f"{tag}:sdks/python/tests", tmp_path / "suite" / "tests")
    install(tmp_path / "sdk", f"meerkat-sdk=={number}", "pytest", "pytest-asyncio")
    path = program(tmp_path, line_of(number))
    files = sorted(str(each) for each in (tmp_path / "suite" / "tests").glob("test_e2e*.py"))
    report = tmp_path / "report.json"
    (tmp_path / "suite" / "conftest.py").write_text(REPORTER, encoding="utf-8")
    options = ["-q", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    told = await run(
        [sys.executable, "-m", "pytest", *options, *files],
        tmp_path / "suite",
        PYTHONPATH=str(tmp_path / "sdk"),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PATH=f"{path.parent}{os.pathsep}{os.environ['PATH']}",
        MEERKAT_OUTCOMES=str(report),
    )
    assert report.exists(), told
    outcomes = [Outcome(**each) for each in json.loads(report.read_text(encoding="utf-8"))]
    check(outcomes)


REPORTER: Final = """
import json, os
seen = {}

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.rpartition("::")[2]
        seen[name] = {"name": name, "passed": report.outcome == "passed", "problem": str(report.longrepr)[-500:]}

def pytest_sessionfinish():
    with open(os.environ["MEERKAT_OUTCOMES"], "w") as file:
        json.dump(list(seen.values()), file)
"""


@pytest.mark.soak
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("version", LINES.values(), ids=lambda version: ".".join(map(str, version)))
async def test_meerkats_tests_of_the_typescript_client_pass(version: tuple[int, ...], tmp_path: Path) -> None:
    """The tests in `sdks/typescript/tests` pass with the client built beside them, but for those left out."""
    repository, npm = clone(), shutil.which("npm")
    if npm is None:
        pytest.skip("building the client needs npm")
    tag = tag_for(repository, version)
    line = line_of(tag[1:])
    if line != f"{version[0]}.{version[1]}":
        pytest.skip(f"the clone has no release of 0.{version[1]}; its newest before that is {tag}")
    unpack(repository, f"{tag}:sdks", tmp_path / "sdks")
    suite = tmp_path / "sdks" / "typescript"
    for packages in ([], ["--no-save", "typescript@5"]):  # the oldest line does not name its compiler
        await trio.run_process([npm, "install", "--no-audit", "--no-fund", *packages], cwd=suite, capture_stdout=True)
    await trio.run_process([str(suite / "node_modules" / ".bin" / "tsc")], cwd=suite, capture_stdout=True)
    path = program(tmp_path, line)
    files = sorted(str(each) for each in (suite / "tests").iterdir() if re.search(r"\.test\.m?js$", each.name))
    outcomes: list[Outcome] = []
    for servers in (True, False):  # those that start no server want to know of none
        some = [each for each in files if Path(each).name.startswith("e2e") == servers]
        named = {"MEERKAT_BIN_PATH": str(path)} if servers and version[1] >= FIRST_WITH_PATH else {}
        places = f"{path.parent}{os.pathsep}{os.environ['PATH']}"
        told = await run(["node", "--test", "--test-reporter=tap", *some], suite, PATH=places, **named)
        outcomes += of_tap(told)
    check(outcomes)


def of_tap(text: str) -> list[Outcome]:
    """Return the outcomes of single tests; those that only group others are left out."""
    matches = (re.match(r"( *)(not )?ok \d+ - (.*)", line) for line in text.splitlines())
    lines = [each for each in matches if each is not None]
    found: list[Outcome] = []
    for index, line in enumerate(lines):
        name, _, skipped = line[3].partition(" # SKIP")
        groups = index > 0 and len(lines[index - 1][1]) > len(line[1])
        if not groups:
            found.append(Outcome(name, line[2] is None and " # SKIP" not in line[3], skipped.strip()))
    return found
