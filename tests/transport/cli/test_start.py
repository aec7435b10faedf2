"""The start of commands: the modules that a process imports, which are most of the time that a command takes."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.transport.cli.process import Cli, clean_environ

LOADED: Final = """
import sys
from warren.transport.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
INITIALIZE: Final = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
COMMON: Final = frozenset({"attr", "attrs", "cattrs", "click", "msgspec", "typing_extensions", "warren"})
RUNNING: Final = COMMON | {"apsw", "idna", "outcome", "sniffio", "sortedcontainers", "trio"}
"""The packages that a command needs to open its store."""


def loaded(folder: Path, *arguments: str, given: bytes = b"") -> tuple[bytes, list[str]]:
    """Run a command in an interpreter of its own; return its output, and the modules that it has imported."""
    command = [sys.executable, "-c", LOADED, *arguments]
    run = subprocess.run(command, cwd=folder, env=clean_environ(), input=given, capture_output=True, check=True)
    return run.stdout, run.stderr.decode().splitlines()[-1].split()


def packages(modules: list[str]) -> set[str]:
    """Return the packages of modules that do not come with Python."""
    found = {name.partition(".")[0] for name in modules}
    return {name for name in found if not name.startswith("_")} - sys.stdlib_module_names


def test_help_imports_no_runtime(cli: Cli) -> None:
    """Help needs neither an event loop nor a store."""
    out, modules = loaded(cli.folder, "--help")
    assert out.startswith(b"Usage: warren")
    assert packages(modules) == COMMON
    assert not any(name.startswith(("warren.actors", "warren.storage")) for name in modules)


@pytest.mark.parametrize("stored", [False, True])
def test_a_list_imports_the_store_alone(cli: Cli, *, stored: bool) -> None:
    """It needs no event loop, no session's actor, no model, no HTTP, no terminal, no memory and no other surface."""
    if stored:
        cli.run("run", "-m", "echo", "hello")
    out, modules = loaded(cli.folder, "sessions", "list")
    assert (b"hello" in out) is stored
    assert packages(modules) <= COMMON | {"apsw"}
    others = ("warren.actors", "warren.mailbox", "warren.transport.providers", "warren.transport.rpc")
    assert not [name for name in modules if name.startswith(others)]
    assert not {"asyncio", "warren.storage.sqlite.store", "warren.transport.cli.memory.commands"} & set(modules)
    assert not [name for name in modules if name.startswith("warren.transport.cli.turns.")]


def test_rpc_imports_its_own_protocol_alone(cli: Cli) -> None:
    """A client that says hello waits for no other contract, no HTTP, memory or model, and no command for people."""
    out, modules = loaded(cli.folder, "rpc", given=INITIALIZE)
    assert b'"result"' in out
    assert packages(modules) <= RUNNING
    others = (
        "warren.transport.rpc.contracts.",
        "warren.transport.http",
        "warren.transport.mcp",
        "warren.transport.acp",
    )
    assert not [name for name in modules if name.startswith(others)]
    assert not {"asyncio", "warren.transport.cli.turns.taking", "warren.transport.cli.turns.screen"} & set(modules)
    assert not {"warren.storage.ephemeral", "warren.actors.resources.memory", "warren.structured.check"} & set(modules)
    assert not {"warren.transport.cli.turns.commands", "warren.transport.cli.pipe.mcp"} & set(modules)
    models = {name.rpartition(".")[2] for name in modules if name.startswith("warren.transport.providers.")}
    assert models == {"dialect", "echo", "registry", "settings"}
