"""The protocol's own conformance suite against `warren serve`: its scenarios for all that the server declares.

The suite calls tools and reads resources of a model server. If a scenario is about the protocol alone, the names of
those stand for ours here. Left out: prompts, sampling, elicitation by a server, and pictures and sounds from a tool,
which this server does not have; `json-schema-2020-12`, `tools-call-with-logging`, `tools-call-with-progress` and
`resources-templates-read`, which want the model server's own answers.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

SUITE: Final = "@modelcontextprotocol/conformance@0.1.16"
NODE: Final = 22
"""The suite needs this version of node, or a newer one."""
SCENARIOS: Final = (
    *("server-initialize", "ping", "logging-set-level", "completion-complete"),
    *("tools-list", "tools-call-simple-text", "tools-call-error"),
    *("resources-list", "resources-read-text", "resources-subscribe", "resources-unsubscribe"),
    *("server-sse-polling", "server-sse-multiple-streams", "dns-rebinding-protection"),
)
TOOLS: Final = {"test_simple_text": "warren_sessions", "test_error_handling": "warren_read"}
RESOURCES: Final = ("test://static-text", "test://watched-resource")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """Give the address of a gateway in a process of its own."""
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--ephemeral", "--model", "echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.terminate()


@pytest.mark.soak
@pytest.mark.time_limit(600)
def test_the_conformance_suite(tmp_path: Path, gateway: str) -> None:
    """Every scenario for what the server declares passes."""
    node, suite = _obtained(tmp_path)
    created = httpx.post(f"{gateway}/sessions", json={"prompt": "hello"})
    names = TOOLS | dict.fromkeys(RESOURCES, f"warren://sessions/{created.json()['session_id']}")
    text = suite.read_text(encoding="utf-8")
    for theirs, ours in names.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    suite.write_text(text, encoding="utf-8")
    for name in SCENARIOS:
        command = [node, str(suite), "server", "--url", f"{gateway}/mcp", "--scenario", name]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, (name, ended.stdout, ended.stderr)


def _obtained(folder: Path) -> tuple[str, Path]:
    """Install the suite, and a node that is new enough unless there is one; skip where that cannot be done."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    old = int(version.removeprefix("v").partition(".")[0]) < NODE
    wanted = [SUITE, *([f"node@{NODE}"] if old else [])]
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *wanted]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if ended.returncode != 0:
        pytest.skip(f"the suite cannot be had: {ended.stderr[-300:]}")
    modules = folder / "node_modules"
    suite = modules / SUITE.rpartition("@")[0] / "dist" / "index.js"
    return str(modules / "node" / "bin" / "node") if old else node, suite
