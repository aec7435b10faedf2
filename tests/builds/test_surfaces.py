"""The contract of the builds on the surfaces: the same codes everywhere, and the messages that are always the same."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
import trio

from tests.builds.build import COMPACTION, EXTRAS, IN_A_BUILD, MEMORY, SQLITE, STORE, SURFACES
from tests.builds.lines import LIMIT, WARREN, clean_environ, talking, warren
from warren.base.extras import installed

if TYPE_CHECKING:
    from trio_websocket import WebSocketConnection

pytestmark = pytest.mark.skipif(
    not (IN_A_BUILD and set(SURFACES) <= EXTRAS), reason="the parity suite does it in the tree: make builds"
)

NOBODY: Final = "00000000-0000-7000-8000-000000000000"
NO_STORE = "Session persistence is disabled (build without 'session-store').\n"
if not SQLITE:
    NO_STORE += "pip install 'warren[session-store]'\n"
NO_COMPACTION: Final = "Session compaction is disabled (build without 'session-compaction').\n"
NO_MEMORY: Final = "Semantic memory is disabled (build without 'memory-store').\npip install 'warren[memory-store]'\n"
UNKNOWN: Final = "SESSION_NOT_FOUND" if STORE else "SESSION_PERSISTENCE_DISABLED"
SETTINGS: Final = {"auto_compact_threshold": 500}

COMPACTS: Final = {"WARREN_COMPACT_THRESHOLD": "1000", "WARREN_COMPACT_EVERY": "0", "WARREN_COMPACT_KEEP": "0"}
ENVIRON: Final = clean_environ(
    WARREN_MODEL="echo",
    **({} if STORE or not SQLITE else {"WARREN_EPHEMERAL": "1"}),
    **(COMPACTS if COMPACTION else {"WARREN_NO_COMPACTION": "1"}),
    **({"WARREN_MEMORY": "1"} if MEMORY else {}),
)
"""The settings of this build: the memory's packages have a store in them, compaction needs none."""


def test_run_works(tmp_path: Path) -> None:
    """In every build a prompt is answered; where nothing is kept the footer says so."""
    done = warren(tmp_path, "run", "hello there", environ=ENVIRON)
    assert (done.returncode, done.stdout) == (0, "hello there\n")
    assert done.stderr.rstrip().endswith(" · not stored") == (not STORE)


@pytest.mark.parametrize("command", [["resume", "last", "again"], ["sessions", "list"], ["sessions", "show", "last"]])
def test_commands_that_need_a_store(tmp_path: Path, command: list[str]) -> None:
    """They work in a later process, or say the canonical sentence and end with 1."""
    assert warren(tmp_path, "run", "hello", environ=ENVIRON).returncode == 0
    done = warren(tmp_path, *command, environ=ENVIRON)
    if STORE:
        assert (done.returncode, bool(done.stdout)) == (0, True)
    else:
        assert (done.returncode, done.stdout, done.stderr) == (1, "", NO_STORE)


def test_sessions_are_deleted_where_they_are_stored(tmp_path: Path) -> None:
    """As the other commands on stored sessions."""
    warren(tmp_path, "run", "hello", environ=ENVIRON)
    done = warren(tmp_path, "sessions", "delete", "last", environ=ENVIRON)
    assert done.returncode == (0 if STORE else 1)
    assert STORE or done.stderr == NO_STORE


def test_compaction_that_cannot_be_had(tmp_path: Path) -> None:
    """A setting of it is refused where it is off, by the canonical sentence; where it is on it is taken."""
    done = warren(tmp_path, "run", "--compact-threshold", "5000", "hello", environ=ENVIRON)
    assert done.returncode == (0 if COMPACTION else 1)
    assert COMPACTION or done.stderr == NO_COMPACTION


def test_memory_that_cannot_be_had(tmp_path: Path) -> None:
    """The option is refused where the packages are missing; where they are there it is taken."""
    done = warren(tmp_path, "run", "--memory", "hello", environ=ENVIRON)
    assert done.returncode == (0 if MEMORY else 1)
    assert MEMORY or done.stderr == NO_MEMORY


@pytest.mark.skipif(not MEMORY, reason="a build without the memory")
def test_a_local_model_that_cannot_be_had(tmp_path: Path) -> None:
    """A model on this machine needs an extra of its own and its weights; the error names the one that is missing."""
    environ = ENVIRON | {"FASTEMBED_CACHE_PATH": str(tmp_path)}
    done = warren(tmp_path, "run", "--memory", "--embedder", "local", "hello", environ=environ)
    lacks = f"are not in {tmp_path}" if installed("local-embedder") else "needs the extra `local-embedder`"
    assert (done.returncode, lacks in done.stderr) == (2, True)


def test_projections_are_made_again_as_they_were(tmp_path: Path) -> None:
    """Deleted and rebuilt from the store, the files are the same byte for byte; without a store there are none."""
    warren(tmp_path, "run", "hello", environ=ENVIRON)
    before = projected(tmp_path)
    assert bool(before) == STORE
    for path in before:
        path.unlink()
    done = warren(tmp_path, "project", "rebuild", environ=ENVIRON)
    assert done.returncode == (0 if STORE else 1)
    assert projected(tmp_path) == before


def projected(folder: Path) -> dict[Path, bytes]:
    """Return the plain files beside the store."""
    store = folder / ".rkat"
    found = [
        *store.glob("index.jsonl"),
        *store.glob("sessions/*/*.json*"),
        *store.glob("sessions/*/*.txt"),
    ]
    return {path: path.read_bytes() for path in found}


def test_a_pipe_of_json_rpc(tmp_path: Path) -> None:
    """`warren rpc`: turns work and tell of compaction; what is off has its code."""
    with talking(tmp_path, "rpc", environ=ENVIRON) as client:
        capabilities = client.ask("capabilities/get", {})["result"]
        assert (capabilities.pop("tools")["memory"] == "on") == MEMORY
        assert capabilities == {
            "session_store": STORE,
            "session_compaction": COMPACTION,
            "memory_store": MEMORY,
        }
        made = client.ask("session/create", {"prompt": "blue door " * 800})["result"]
        client.ask("turn/start", {"session_id": made["session_id"], "prompt": "and now?"})
        names = [message["params"]["event"]["type"] for message in client.told]
        compaction = [name for name in names if name.startswith("compaction")]
        assert compaction == (["compaction_started", "compaction_completed"] if COMPACTION else [])
        assert code(client.ask("session/resume", {"session_id": NOBODY})) == UNKNOWN
        refused = client.ask("session/create", {"prompt": None, "compaction": SETTINGS})
        assert code(refused) == (None if COMPACTION else "SESSION_COMPACTION_DISABLED")
        searched = client.ask("memory/search", {"query": "blue door", "scope": "project"})
        assert code(searched) == (None if MEMORY else "SESSION_MEMORY_DISABLED")
        assert not (MEMORY and COMPACTION) or searched["result"]["hits"]


def code(message: Mapping[str, Any]) -> str | None:
    """Return the code of a response's error, None for a result."""
    return message["error"]["data"]["code"] if "error" in message else None


def test_an_mcp_server(tmp_path: Path) -> None:
    """`warren mcp`: a tool that needs what is off gives a result with the error's body, the others work."""
    with talking(tmp_path, "mcp", environ=ENVIRON) as client:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        client.ask("initialize", hello)
        client.notify("notifications/initialized")

        def call(tool: str, **arguments: Any) -> dict[str, Any]:
            result: dict[str, Any] = client.ask("tools/call", {"name": tool, "arguments": arguments})["result"]
            content: dict[str, Any] = result["structuredContent"]
            assert result["isError"] == ("code" in content)
            return content

        assert call("warren_run", prompt="hello")["text"] == "hello"
        search = call("warren_memory_search", query="hello", scope="project")
        assert search.get("code") == (None if MEMORY else "SESSION_MEMORY_DISABLED")
        refused = call("warren_run", prompt=None, compaction=SETTINGS)
        assert refused.get("code") == (None if COMPACTION else "SESSION_COMPACTION_DISABLED")
        assert call("warren_resume", session_id=NOBODY, prompt="hello")["code"] == "SESSION_NOT_FOUND"


def test_an_acp_agent(tmp_path: Path) -> None:
    """`warren acp`: prompts work; loading a session is offered, and done, where sessions are stored."""
    with talking(tmp_path, "acp", environ=ENVIRON) as client:
        able = client.ask("initialize", {"protocolVersion": 1})["result"]["agentCapabilities"]
        assert able["loadSession"] == STORE
        made = client.ask("session/new", {"cwd": "/", "mcpServers": []})["result"]
        said = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "hello"}]}
        assert client.ask("session/prompt", said)["result"]["stopReason"] == "end_turn"
        assert code(client.ask("session/load", {"sessionId": NOBODY, "cwd": "/", "mcpServers": []})) == UNKNOWN


def test_http(tmp_path: Path) -> None:
    """`warren serve`: the statuses and bodies of what is off; turns and their sessions work."""
    with serving(tmp_path) as url, httpx.Client(base_url=url, timeout=LIMIT) as http:
        made = http.post("/sessions", json={"prompt": "hello"})
        assert (made.status_code, made.json()["text"]) == (201, "hello")
        session_id = made.json()["session_id"]
        assert http.post(f"/sessions/{session_id}/messages", json={"prompt": "again"}).json()["text"] == "again"
        assert len(http.get("/sessions").json()["sessions"]) == 1
        gone = http.delete(f"/sessions/{NOBODY}")
        assert (gone.status_code, gone.json()["code"]) == (404 if STORE else 405, UNKNOWN)
        refused = http.post("/sessions", json={"prompt": None, "compaction": SETTINGS})
        assert refused.status_code == (201 if COMPACTION else 501)
        assert COMPACTION or refused.json()["code"] == "SESSION_COMPACTION_DISABLED"


def test_a_websocket(tmp_path: Path) -> None:
    """`warren serve`, at /ws: a turn with its events in front of its reply; what is off has its code."""
    with serving(tmp_path) as url:
        trio.run(_over_a_websocket, url.replace("http://", "ws://") + "/ws")


async def _over_a_websocket(url: str) -> None:
    from trio_websocket import open_websocket_url  # noqa: PLC0415 - the builds without a gateway read this file too

    with trio.fail_after(LIMIT):
        async with open_websocket_url(url) as socket:
            made, told = await _ask(socket, "session/create", prompt="hello")
            assert made["result"]["text"] == "hello"
            kinds = [message["params"]["event"]["type"] for message in told]
            assert (kinds[0], kinds[-1]) == ("run_started", "run_completed")
            refused, _ = await _ask(socket, "session/create", prompt=None, compaction=SETTINGS)
            assert code(refused) == (None if COMPACTION else "SESSION_COMPACTION_DISABLED")
            searched, _ = await _ask(socket, "memory/search", query="hello", scope="project")
            assert code(searched) == (None if MEMORY else "SESSION_MEMORY_DISABLED")
            gone, _ = await _ask(socket, "session/resume", session_id=NOBODY)
            assert code(gone) == UNKNOWN


async def _ask(
    socket: "WebSocketConnection", method: str, **params: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Send a request; return its response and what was said before it."""
    await socket.send_message(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))
    told: list[dict[str, Any]] = []
    while (message := json.loads(await socket.get_message())).get("id") != method:
        told.append(message)
    return message, told


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve this build on a port of its own, and give its address."""
    command = [WARREN, "serve", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRON, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
        process.terminate()
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(SQLITE, reason="a store can be had")
@pytest.mark.parametrize("command", ["serve", "rpc", "mcp", "acp"])
def test_what_serves_keeps_nothing_and_says_so(tmp_path: Path, command: str) -> None:
    """Without SQLite a server runs in memory and says so on stderr; it refuses a store that was named."""
    port = ["--port", "0"] if command == "serve" else []
    process = subprocess.Popen(
        [WARREN, command, *port],
        cwd=tmp_path,
        env=ENVIRON,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "kept in memory" in process.stderr.readline()
        if command == "serve":
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on ")
            process.terminate()
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
    named = warren(tmp_path, command, "--store", "kept", "--output", "json", environ=ENVIRON)
    assert named.returncode == 1
    assert json.loads(named.stderr)["code"] == "SESSION_PERSISTENCE_DISABLED"
