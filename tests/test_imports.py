"""Imports go one way: domain <- mailbox <- storage <- actors <- transport."""

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from typing import Final

import pytest

from tests.support.imports import DOMAIN, ROOT, arrows, library, named, parsed, read, sources
from tests.support.layers import FOLDERS, LAYERS

FACADE: Final = DOMAIN / "__init__.py"
# `python -m warren` has to be here, and starts the command line.
COMMAND: Final = DOMAIN / "__main__.py"
# The names by which programs import the service for asyncio, and the client.
AIO: Final = DOMAIN / "aio.py"
CLIENT: Final = DOMAIN / "client.py"
# The name by which programs import what their tests need.
TESTING: Final = DOMAIN / "testing.py"
# The names of the hooks that come with it.
GUARDS: Final = DOMAIN / "guards.py"

VALUES: Final = DOMAIN / "base/values.py"

# Modules outside the domain that do no I/O of their own. The domain never does.
SANS_IO: Final[tuple[str, ...]] = (
    "actors/session/machine.py",
    "actors/supervisor/rounds.py",
    "actors/supervisor/scheduler.py",
    "actors/limits/tenancy.py",
    "actors/turn/outcome.py",
    "storage/memory/weights.py",
    "storage/memory/words.py",
    "storage/postgres/session.py",
    "storage/projection/formats.py",
    "storage/rows.py",
    "transport/acp/commands.py",
    "transport/acp/content.py",
    "transport/acp/modes.py",
    "transport/acp/params.py",
    "transport/acp/updates.py",
    "transport/cluster/door.py",
    "transport/cluster/health.py",
    "transport/cluster/token.py",
    "transport/access/config.py",
    "transport/gateway/handshake.py",
    "transport/access/auth.py",
    "transport/access/front.py",
    "transport/access/head.py",
    "transport/access/jwt_config.py",
    "transport/access/logins.py",
    "transport/access/refusals.py",
    "transport/load/diff.py",
    "transport/load/failover/ledger.py",
    "transport/load/failover/plan.py",
    "transport/load/stream.py",
    "transport/load/verify.py",
    "transport/providers/accumulate.py",
    "transport/providers/anthropic.py",
    "transport/providers/bedrock.py",
    "transport/providers/claude.py",
    "transport/providers/dialect.py",
    "transport/providers/encoded.py",
    "transport/providers/excess.py",
    "transport/providers/failures.py",
    "transport/providers/http/reader.py",
    "transport/providers/http/writer.py",
    "transport/providers/gemini.py",
    "transport/providers/kept.py",
    "transport/providers/omitted.py",
    "transport/providers/repair.py",
    "transport/providers/openai.py",
    "transport/providers/pictures.py",
    "transport/providers/responses.py",
    "transport/providers/settings.py",
    "transport/providers/unanswered.py",
    "transport/providers/sse.py",
    "transport/providers/tags.py",
    "transport/providers/tool_rules.py",
    "transport/providers/tool_schemas.py",
    "transport/providers/vertex.py",
    "transport/providers/wire.py",
    "transport/rpc/behalf.py",
    "transport/rest/forms.py",
    "transport/rpc/traces.py",
    "transport/rpc/uploads.py",
    "transport/tracing/messages.py",
    "transport/tracing/spans.py",
    "transport/rpc/contracts/__init__.py",
    "transport/rpc/contracts/meerkat/dialect.py",
    "transport/rpc/contracts/meerkat/events.py",
    "transport/rpc/contracts/meerkat/params.py",
    "transport/rpc/contracts/meerkat/versions.py",
    "transport/rpc/contracts/meerkat/results.py",
    "transport/rpc/dialect.py",
    "transport/rpc/jsonrpc.py",
    "transport/rpc/methods.py",
    "transport/rpc/opened.py",
    "transport/rpc/outbox.py",
    "transport/rpc/params.py",
    "transport/rpc/results.py",
    "transport/rpc/schemas.py",
    "transport/rpc/settings.py",
    "transport/rpc/shares.py",
)
OF_TESTS: Final = re.compile(r"^\s*(?:from|import)\b[^\n(]*(?:\([^)]*)?\btest_", re.MULTILINE)
DOES_IO: Final = frozenset({"apsw", "click", "httpx", "psycopg", "trio", "trio_websocket", "usearch"})


def layer_of(module: str) -> str:
    """Name the layer that `warren.x.y` belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "domain"


def violations(path: PurePosixPath, source: str) -> list[str]:
    """Name each import in the source of `path` that breaks a rule."""
    layer = _layer_of_file(path)
    sans_io = layer == "domain" or str(path) in SANS_IO
    tree = parsed(source)
    lazy = _lazy_exports(tree) if path == FACADE else frozenset()
    found = []
    for node in ast.walk(tree):
        for module in _imported(node):
            rule = None if node in lazy else _broken_rule(layer, module, sans_io=sans_io)
            if rule:
                found.append(f"{path}:{getattr(node, 'lineno', 0)}: {module}: {rule}")
        if _is_import_by_name(node) and node not in lazy:
            found.append(f"{path}:{getattr(node, 'lineno', 0)}: import of the library by a string")
    return found


def _layer_of_file(path: PurePosixPath) -> str:
    if path in {COMMAND, AIO, CLIENT, TESTING, GUARDS}:
        return LAYERS[-1]
    return "domain" if path.is_relative_to(DOMAIN) else path.parts[0]


def _broken_rule(layer: str, module: str, *, sans_io: bool) -> str | None:
    root = module.split(".", maxsplit=1)[0]
    if not root:
        return "relative import"
    if module == "warren":
        return "import from the defining module, not from the public face"
    if root == "warren" and LAYERS.index(layer_of(module)) > LAYERS.index(layer):
        return f"{layer} may not import {layer_of(module)}"
    if sans_io and root in DOES_IO:
        return "this module does no I/O"
    return None


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules an import statement names; those of a relative one begin with a dot."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        if module == "warren":
            yield from (_submodule(alias.name) for alias in node.names)
        else:
            yield module


def _submodule(name: str) -> str:
    """Resolve `from warren import name`: a module of the library, or a name of the public face."""
    is_module = name in FOLDERS or (ROOT / DOMAIN / f"{name}.py").exists() or (ROOT / DOMAIN / name).is_dir()
    return f"warren.{name}" if is_module else "warren"


def _is_import_by_name(node: ast.AST) -> bool:
    """Tell whether this is a call such as `import_module("warren.x")`, also with a put-together name."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called not in {"import_module", "__import__"}:
        return False
    strings = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
    return any(isinstance(text, str) and text.startswith(("warren", ".")) for text in strings)


def _lazy_exports(tree: ast.Module) -> frozenset[ast.AST]:
    """Collect what the public face may do: import outer layers in `__getattr__` (PEP 562) and for type checkers."""
    blocks = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
        or (isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"})
    ]
    return frozenset(inner for block in blocks for inner in ast.walk(block))


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import one another in a circle, the first one also last; none if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return []


def between_folders(graph: Mapping[str, set[str]], layer: str) -> dict[str, set[str]]:
    """Return the arrows between the folders of a layer; a module without a folder stands for itself."""
    prefix = f"warren.{layer}."
    found: dict[str, set[str]] = {}
    for module, imported in graph.items():
        if module.startswith(prefix):
            folders = {each.split(".")[2] for each in imported if each.startswith(prefix)}
            found.setdefault(module.split(".")[2], set()).update(folders - {module.split(".")[2]})
    return found


def test_no_module_imports_itself_through_others() -> None:
    """No circle of imports runs through the modules of the library."""
    assert circle(library()) == []


@pytest.mark.parametrize("layer", ["actors", "transport"])
def test_no_folder_imports_itself_through_others(layer: str) -> None:
    """The folders of a layer import one another one way, so that each can be read without those above it."""
    assert circle(between_folders(library(), layer)) == []


@pytest.mark.parametrize(
    "back",
    [
        "from warren.actors.one import Name",
        "from warren.actors import one",
        "import warren.actors.one",
        "if TYPE_CHECKING:\n    from warren.actors.one import Name",
        "def late():\n    from warren.actors.one import Name",
    ],
)
def test_a_circle_is_found(back: str) -> None:
    """Every kind of import closes a circle."""
    texts = {"warren.actors.one": "import warren.actors.two", "warren.actors.two": "from warren.actors import three"}
    graph = arrows({**texts, "warren.actors.three": back})
    assert set(circle(graph)) == {"warren.actors.one", "warren.actors.two", "warren.actors.three"}
    assert circle(arrows({**texts, "warren.actors.three": "import trio"})) == []


def test_a_circle_of_folders_is_found() -> None:
    """Two folders that import each other are a circle even if no two of their modules do."""
    texts = {
        "warren.transport.one.a": "import warren.transport.two.a",
        "warren.transport.two.a": "",
        "warren.transport.two.b": "import warren.transport.one.b",
        "warren.transport.one.b": "",
    }
    assert circle(arrows(texts)) == []
    assert set(circle(between_folders(arrows(texts), "transport"))) == {"one", "two"}


def test_nothing_imports_from_a_module_of_tests() -> None:
    """Helpers that several tests use are in modules of their own: `tests/support`, or beside the tests."""
    tests = (path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    modules = {".".join(path.with_suffix("").parts) for path in tests}
    paths = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        if OF_TESTS.search(path.read_text(encoding="utf-8"))  # parses only what can have one
        for name in named(path.read_text(encoding="utf-8"), modules)
        if name in modules
    ]
    assert found == []


def test_imports_go_inwards() -> None:
    """A module imports its own layer and those further in, and does I/O only where that is its job."""
    assert [each for path in sources() for each in violations(path, read(path))] == []


def test_classes_are_made_in_one_way() -> None:
    """A class is made by a decorator of `base.values`: with those of attrs it takes more than twice the start."""
    others = [path for path in sources() if "attrs.frozen" in read(path) or "attrs.define" in read(path)]
    assert others == [VALUES]


def test_every_module_is_read() -> None:
    """No layer is left out by mistake, and the modules declared free of I/O exist."""
    paths = sources()
    for folder in (*FOLDERS, str(DOMAIN)):
        assert any(path.is_relative_to(folder) for path in paths), folder
    assert [name for name in SANS_IO if PurePosixPath(name) not in paths] == []


def test_a_claim_of_no_io_is_held() -> None:
    """A module whose docstring claims to do no I/O is on the list, and so is held to it."""
    claims = [path for path in sources() if "No I/O" in read(path)]
    outside = [str(path) for path in claims if _layer_of_file(path) != "domain"]
    assert sorted(set(outside) - set(SANS_IO)) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("src/warren/conversation/messages.py", "import warren.mailbox"),
        ("src/warren/conversation/messages.py", "import os, warren.mailbox.box"),
        ("src/warren/conversation/messages.py", "from warren import transport"),
        ("src/warren/conversation/messages.py", "def late():\n    from warren.actors.session.actor import Session"),
        ("src/warren/conversation/messages.py", "if TYPE_CHECKING:\n    from warren.storage import Store"),
        ("mailbox/box.py", "from warren.storage import Store"),
        ("storage/sqlite/store.py", "from warren.actors.session.actor import Session"),
        ("actors/session.py", "import warren.transport.cli"),
        ("actors/session.py", "from .turn import Turn"),
        ("actors/session.py", "from . import turn"),
        ("actors/session.py", "import warren"),
        ("actors/session.py", "from warren import open_supervisor"),
        ("actors/session.py", "importlib.import_module('warren.transport')"),
        ("actors/session.py", "import_module('.transport', 'warren')"),
        ("actors/session.py", "__import__('warren.transport')"),
        ("actors/session.py", "import_module(f'warren.{layer}')"),
        ("actors/session.py", "import_module('warren.' + layer)"),
        ("src/warren/conversation/messages.py", "import trio"),
        ("src/warren/conversation/messages.py", "from trio.testing import MockClock"),
        ("src/warren/conversation/messages.py", "import apsw.aio"),
        ("src/warren/conversation/messages.py", "from usearch.index import Index"),
        ("src/warren/conversation/messages.py", "import httpx"),
        ("src/warren/conversation/messages.py", "import trio_websocket"),
        ("src/warren/conversation/messages.py", "import click"),
        ("src/warren/__init__.py", "import trio"),
        ("src/warren/__init__.py", "from warren.actors import open_supervisor"),
        ("src/warren/__init__.py", "def other(name):\n    return import_module('warren.actors')"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    """Each way around the rules is noticed."""
    assert len(violations(PurePosixPath(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("src/warren/conversation/messages.py", "import attrs\nfrom warren.usage import Usage"),
        ("mailbox/box.py", "import trio\nfrom warren import errors\nfrom warren.mailbox.slot import Slot"),
        ("storage/sqlite/store.py", "import apsw\nfrom warren.mailbox import Mailbox"),
        ("actors/session.py", "from warren.storage import Store\nfrom warren.mailbox import Mailbox"),
        ("transport/cli.py", "import click\nfrom warren.actors import open_supervisor"),
        ("transport/cli.py", "import_module('rich.live')"),
        ("src/warren/__main__.py", "from warren.transport.cli import main"),
        ("src/warren/__init__.py", "if TYPE_CHECKING:\n    from warren.actors import open_supervisor"),
        ("src/warren/__init__.py", "def __getattr__(name):\n    return import_module(f'warren.{WHERE[name]}')"),
        ("src/warren/__init__.py", "def __getattr__(name):\n    from warren.actors import open_supervisor"),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    """An import that points inwards passes, and so do the lazy exports of the public face."""
    assert violations(PurePosixPath(path), source) == []


def test_a_module_declared_sans_io_is_held_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module on the list may not import what does I/O; its neighbours may."""
    monkeypatch.setitem(globals(), "SANS_IO", ("transport/rpc/jsonrpc.py",))
    assert violations(PurePosixPath("transport/rpc/jsonrpc.py"), "import trio") != []
    assert violations(PurePosixPath("transport/gateway/gateway.py"), "import trio") == []
