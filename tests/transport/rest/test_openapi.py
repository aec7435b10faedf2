"""The OpenAPI document, and whether the gateway keeps to it."""

import logging
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, gateway
from tests.transport.rest.clients import rest
from warren.base.errors import NUMBERS, AgentError
from warren.calls.facade import Capabilities
from warren.conversation.options import CompactionConfig
from warren.models.catalog import ModelEntry
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.rest.routes import ROUTES, TRIGGER_PATH
from warren.transport.rpc.methods import METHODS

ELSEWHERE: Final = {
    *("initialize", "initialized", "session/unsubscribe", "session/unwatch", "tools/register"),
    "file/put",  # a request has its files itself
}
"""Methods that make sense on a connection that stays."""
PRICED: Final = {"echo": ModelEntry(input=Decimal(1), output=Decimal(1))}
"""With prices: without any a budget in money is refused, though it fits the document."""
HOOKS: Final = f'hooks = "{Path(__file__).with_name("schema_hooks.py")}"\n'


async def document() -> dict[str, Any]:
    """Return the document that a gateway serves which can do everything."""
    service = FakeService()
    service.can = Capabilities(session_store=True, session_compaction=True, memory_store=True)
    async with rest(service) as http:
        response = await http.get("/openapi.json")
        assert response.status_code == 200
        found = response.json()
        assert isinstance(found, dict)
        return found


def test_every_method_has_a_route() -> None:
    """A method is either on a route or one of those that belong to connections."""
    assert {row.method.name for row in ROUTES} == METHODS.keys() - ELSEWHERE


async def test_the_document_has_every_route() -> None:
    """Each operation names its method, its answers and every parameter of it, exactly once."""
    paths = (await document())["paths"]
    assert {(path, verb) for path, verbs in paths.items() for verb in verbs} == {
        (row.path, row.verb.lower()) for row in ROUTES
    } | {(TRIGGER_PATH, "post")}
    for row in ROUTES:
        operation = paths[row.path][row.verb.lower()]
        assert operation["summary"] == row.method.doc
        assert str(row.status) in operation["responses"]
        named = [parameter["name"] for parameter in operation.get("parameters", ())]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        named += body.get("schema", {}).get("properties", {})
        fields = [field.name for field in row.method.params.__attrs_attrs__]
        assert sorted(set(named) - {"Last-Event-ID", "Idempotency-Key"}) == sorted(fields), row
        assert len(named) == len(set(named))


async def test_without_a_store_nothing_is_offered_that_needs_one() -> None:
    """Neither `Allow` nor the document names what answers 501."""
    async with rest(FakeService()) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        there = paths["/sessions/{session_id}"].keys()
        allowed = (await http.options("/sessions/s1")).headers["allow"].lower().split(", ")
        assert sorted(allowed) == sorted([*there, "head"])
        assert "delete" not in allowed
        events = paths["/sessions/{session_id}/events"]["get"]
        assert [parameter["name"] for parameter in events["parameters"]] == ["session_id"]


async def test_the_document_has_every_status_of_the_error_table() -> None:
    """No error has a status that clients are not told of."""
    responses = (await document())["components"]["responses"]
    statuses = {numbers.http for numbers in NUMBERS.values()} | {AgentError("x", cause="cancelled").numbers.http}
    assert {str(status) for status in statuses} <= responses.keys()


def nodes_of(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a document."""
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes_of(inner)


async def test_every_reference_leads_somewhere() -> None:
    """The document is whole."""
    found = await document()
    for node in nodes_of(found):
        if "$ref" in node:
            target = found
            for step in node["$ref"].removeprefix("#/").split("/"):
                target = target[step]
    assert "Envelope" in found["components"]["schemas"]


async def test_no_object_is_a_union_too() -> None:
    """Code generators would take it for the union, and drop its properties."""
    for node in nodes_of(await document()):
        assert "properties" not in node or not node.keys() & {"anyOf", "oneOf", "allOf"}, node["description"]


async def schemathesis(port: int, folder: Path, *options: str) -> tuple[int, str]:
    """Run it in a folder, which may have settings for it; return its exit code and what it found."""
    program = shutil.which("schemathesis", path=sysconfig.get_path("scripts"))
    assert program is not None
    command: Sequence[str] = (program, "run", f"http://{HOST}:{port}/openapi.json")
    ended = await trio.run_process(
        [*command, "--no-color", *options],
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
        cwd=folder,
    )
    return ended.returncode, ended.stdout.decode()


async def check_the_gateway(
    folder: Path, logs: pytest.LogCaptureFixture, phases: str, examples: int, *, stored: bool = True
) -> None:
    """Send requests made from the document: all answers fit it, and the log has no warning."""
    (folder / "schemathesis.toml").write_text(HOOKS)
    store = StoreConfig(folder / "store") if stored else None
    async with open_supervisor(Config(store=store, models=PRICED), environ={}) as service, gateway(service) as port:
        code, said = await schemathesis(port, folder, f"--phases={phases}", f"-n{examples}", "--seed=1")
    assert code == 0, said
    assert [record for record in logs.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("stored", [True, False])
async def test_the_gateway_keeps_to_its_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, stored: bool
) -> None:
    """Whatever fits the document is served or refused in its words, and what does not fit is never a bug."""
    await check_the_gateway(tmp_path, caplog, "fuzzing", examples=3, stored=stored)


@pytest.mark.soak
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.time_limit(3600)
async def test_the_gateway_keeps_to_all_of_its_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, stored: bool
) -> None:
    """The same with the borders of each parameter, and many random requests for each route."""
    await check_the_gateway(tmp_path, caplog, "coverage,fuzzing", examples=50, stored=stored)


@pytest.mark.soak
@pytest.mark.time_limit(3600)
async def test_the_gateway_keeps_to_its_document_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same with every phase, requests that follow from each other, and another seed each time."""
    (tmp_path / "schemathesis.toml").write_text(HOOKS)
    config = Config(store=StoreConfig(tmp_path / "store"), compaction=CompactionConfig(), models=PRICED)
    async with open_supervisor(config, environ={}) as service, gateway(service) as port:
        code, said = await schemathesis(port, tmp_path, f"--max-time={soak_seconds:.0f}", "--workers=2")
    assert code == 0, said
