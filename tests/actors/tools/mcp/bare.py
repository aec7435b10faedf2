"""A server with the standard library alone: it starts at once, and misbehaves as its arguments say.

`bare.py FOLDER NAME FLAGS...` notes in FOLDER, as `NAME.pids`, every process it is. Flags: `mute` never answers,
`noisy` prints what is no message, `stubborn` outlives the end of its input and SIGTERM, `parent` starts a process that
is as stubborn, `dies` ends at once and says why, `deaf` answers no ping, `modern` knows no handshake, `huge` answers
calls with a line that is too long, and those of `ODD` with an odd one, `unsound` has tools without a sound schema,
`chatty` writes to stderr without end. While there is `NAME.floods`, `pings` and `wrong` send as many pings, or wrong
notifications, as they can. Each call of `hang` is noted as `NAME.hung`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
ODD = {
    "half": r'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"9 \ud83d"}]}}',
    "several": '[{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"9"}]}}]',
    "text": '{"jsonrpc":"2.0","id":ID,"result":"9"}',
    "refused": '{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"bad"}}',
    "unsaid": '{"jsonrpc":"2.0","id":ID,"error":{"code":"no"}}',
}
"""Answers to calls, which are not quite what they should be, by their flags."""
FLOODS = {
    "pings": {"jsonrpc": "2.0", "id": "p", "method": "ping"},
    "wrong": {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": 7}},
}
"""Messages that nobody has asked for, by their flags."""
TOOLS = [
    {"name": "square", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    {"name": "hang", "inputSchema": {"type": "object"}},
    {"name": "die", "inputSchema": {"type": "object"}},
]
UNSOUND = [
    {"name": "text", "inputSchema": {"type": "string"}},
    {"name": "nothing", "inputSchema": None, "outputSchema": {"type": "string"}},
    {"name": "open", "inputSchema": {"properties": {"n": "number", "m": {"$ref": "#/$defs/M"}}, "$defs": {"M": {}}}},
    {
        "name": "any",
        "description": 3,
        "annotations": "x",
        "inputSchema": {"type": ["object", "null"], "required": True},
    },
    {"inputSchema": {"type": "object"}},
    "no tool",
]
"""Tools as the protocol does not have them."""


def main(folder: str, name: str, *flags: str) -> None:
    """Answer line by line until there are no more."""
    note(folder, name, os.getpid())
    if "dies" in flags:
        sys.exit("no database here")
    if "stubborn" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in flags:
        child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        note(folder, name, child.pid)
    threading.Thread(target=chat, args=[flags], daemon=True).start()
    wait(Path(folder) / f"{name}.go", flags)
    for line in sys.stdin:
        message = json.loads(line)
        if "noisy" in flags:
            say("loading...\n\n{}")
        if "method" in message and "id" in message and "mute" not in flags:
            answer(message, flags)
        if message.get("method") == "tools/list":
            flood(Path(folder) / f"{name}.floods", flags)
        if message.get("params", {}).get("name") == "hang":
            (Path(folder) / f"{name}.hung").touch()
    while "stubborn" in flags:
        time.sleep(60)


def wait(file: Path, flags: Sequence[str]) -> None:
    """Answer nothing until there is a file."""
    while "late" in flags and not file.exists():
        time.sleep(0.01)


def flood(file: Path, flags: Sequence[str]) -> None:
    """Send messages that nobody has asked for as long as there is a file."""
    for flag in FLOODS.keys() & set(flags):
        while file.exists():
            say("\n".join([json.dumps(FLOODS[flag])] * 100))


def chat(flags: Sequence[str]) -> None:
    """Write to stderr without end."""
    while "chatty" in flags:
        sys.stderr.write("and so on\n" * 1000)


def note(folder: str, name: str, pid: int) -> None:
    """Tell the test of a process."""
    with (Path(folder) / f"{name}.pids").open("a") as pids:
        pids.write(f"{pid}\n")


def answer(message: Mapping[str, Any], flags: Sequence[str]) -> None:
    """Answer one request."""
    match message["method"]:
        case "ping" if "deaf" in flags:
            return
        case "initialize" if "modern" in flags:
            refusal = {"code": -32601, "message": "Method not found"}
            say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal}))
            return
        case "server/discover":
            result: Any = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "bare", "version": "1"}
        case "tools/list":
            result = {"tools": TOOLS + (UNSOUND if "unsound" in flags else [])}
        case "tools/call":
            result = called(message, flags)
        case _:
            result = {}
    if result is None:
        return
    if "modern" in flags:
        result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))


def called(message: Mapping[str, Any], flags: Sequence[str]) -> dict[str, Any] | None:
    """Run a tool; return the result, or None if there is none or it has been sent."""
    match message["params"]["name"]:
        case "die":
            os._exit(3)
        case "hang":
            return None
    odd = [flag for flag in flags if flag in ODD]
    if odd:
        say(ODD[odd[0]].replace("ID", str(message["id"])))
        return None
    arguments = message["params"].get("arguments", {})
    text = "x" * 17_000_000 if "huge" in flags else str(arguments["n"] ** 2)
    return {"content": [{"type": "text", "text": text}]}


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
