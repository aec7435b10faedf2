"""The metrics as Prometheus reads them: at a gateway, on a port of their own, and in the registry of a host."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.conftest import ROOT
from tests.support.fake_service import FakeService
from tests.transport.clients import HOST
from tests.transport.cluster.nodes import free_port
from tests.transport.rest.clients import client, problem, rest
from tests.transport.rest.serving import served
from warren.actors.observe.counters import OUTCOMES
from warren.conversation.memory import MemoryConfig
from warren.reports.metrics import Metric, Metrics, Series
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.prometheus import RuntimeCollector, exposed

TOKEN: Final = "s3cret-t0ken"  # noqa: S105 - not one of ours
MONITORING: Final = ROOT / "docs" / "monitoring"
PAGE: Final = ROOT / "docs" / "metrics.md"
NAME: Final = re.compile(r"\bwarren_[a-z_]+\b")


_openmetrics: Callable[[str], Iterable[Any]] = openmetrics.text_string_to_metric_families


def values(text: str) -> dict[str, float]:
    """Return the sum of the samples of each name."""
    found: dict[str, float] = {}
    for family in parsed(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


async def test_a_scrape(tmp_path: Path) -> None:
    """It has the turns of the runtime and the clients of the gateway, in the format that is asked for."""
    async with served(tmp_path) as (service, http):
        for _ in range(3):
            await service.create_session("hello", model="echo")
        plain = await http.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=")
        found = values(plain.text)
        assert found["warren_turns_total"] == found["warren_turn_duration_seconds_count"] == 3
        assert found["warren_connections"] == found["warren_build_info"] == 1
        asked = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert asked.headers["content-type"].startswith("application/openmetrics-text")
        assert {family.name for family in _openmetrics(asked.text)} >= {"warren_turns", "warren_build"}
        assert (await http.head("/metrics")).status_code == 200
        assert (await http.post("/metrics")).status_code == 405
        as_json = (await http.get("/metrics.json")).json()
        assert {each["name"] for each in as_json["metrics"]} >= {"warren_turns_total", "warren_connections"}


async def test_the_gateway_asks_for_its_token() -> None:
    """As for everything else."""
    async with rest(FakeService(), token=TOKEN) as http:
        assert problem(await http.get("/metrics")) == (401, "INVALID_PARAMS", "$.headers.authorization")
        answer = await http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert values(answer.text)["warren_sessions_live"] == 3


async def test_a_port_of_its_own() -> None:
    """It has the metrics and nothing else, for this machine, under its own names, without the token of clients."""
    port = free_port()
    async with rest(FakeService(), token=TOKEN, metrics_port=port), client(port) as http:
        assert "warren_sessions_live 3.0" in (await http.get("/metrics")).text
        for path in ("/health", "/sessions", "/metrics.json", "/ws"):
            assert (await http.get(path)).status_code == 404, path
        assert (await http.get("/metrics", headers={"host": "evil.example"})).status_code == 403
        assert (await http.get("/metrics", headers={"origin": "https://evil.example"})).status_code == 403


async def test_a_scrape_that_comes_while_the_gateway_ends() -> None:
    """The port is closed with the gateway; a connection that is kept open does not hold its end up."""
    port = free_port()
    async with rest(FakeService(), metrics_port=port, close_timeout=0.2):
        kept = await trio.open_tcp_stream(HOST, port)
    with trio.fail_after(5):
        while await kept.receive_some():
            pass
    with pytest.raises(OSError, match="attempts to connect"):
        await trio.open_tcp_stream(HOST, port)
    await kept.aclose()


def test_each_kind() -> None:
    """The buckets of a histogram are cumulative, whatever a label's value has is escaped."""
    metrics = Metrics(
        (
            Metric("a_total", "counter", "A.", ("x",), series=(Series(('one "two"\n\\',), 3),)),
            Metric("b", "gauge", "B.", series=(Series((), 1.5),)),
            Metric("c_seconds", "histogram", "C.", ("x",), (0.0005, 1.0), (Series(("y",), 9.0, (2, 0, 3)),)),
            Metric("d_info", "info", "D.", ("version",), series=(Series(("1",), 1),)),
        )
    )
    text, _ = exposed(metrics, "")
    samples = {
        (each.name, *(each.labels[name] for name in sorted(each.labels))): each.value
        for family in parsed(text.decode())
        for each in family.samples
    }
    assert samples == {
        ("a_total", 'one "two"\n\\'): 3,
        ("b",): 1.5,
        ("c_seconds_bucket", "0.0005", "y"): 2,
        ("c_seconds_bucket", "1.0", "y"): 2,
        ("c_seconds_bucket", "+Inf", "y"): 5,
        ("c_seconds_count", "y"): 5,
        ("c_seconds_sum", "y"): 9,
        ("d_info", "1"): 1,
    }


async def test_the_registry_of_a_host() -> None:
    """A collector can be read on the event loop and in threads, and has nothing once the loop has ended."""
    registry = CollectorRegistry()
    async with open_supervisor(Config(model="echo")) as service:
        registry.register(RuntimeCollector(service))
        await service.create_session("hello")
        here = values(generate_latest(registry).decode())
        there = values((await trio.to_thread.run_sync(generate_latest, registry)).decode())
    assert here["warren_turns_total"] == there["warren_turns_total"] == 1


def test_a_collector_outlives_its_runtime() -> None:
    """A scrape after the end finds no metrics, and no error."""

    async def run() -> RuntimeCollector:
        async with open_supervisor(Config(model="echo")) as service:
            return RuntimeCollector(service)

    collector = trio.run(run)
    found: list[Any] = []
    trio.run(trio.to_thread.run_sync, lambda: found.extend(collector.collect()))
    assert found == []


async def all_metrics(folder: Path) -> dict[str, Any]:
    """Return every metric of a gateway whose runtime has all that can be counted."""
    config = Config(store=StoreConfig(folder), memory=MemoryConfig(folder / "memory"), model="echo")
    async with open_supervisor(config) as service, rest(service) as http:
        await service.create_session("hello")
        found = (await http.get("/metrics.json")).json()["metrics"]
    return {each["name"]: each for each in found}


def exported(metrics: dict[str, Any]) -> set[str]:
    """Return the names of the samples of metrics."""
    names: set[str] = set()
    for name, metric in metrics.items():
        parts = ("_bucket", "_sum", "_count") if metric["kind"] == "histogram" else ("",)
        names.update(name + part for part in parts)
    return names


def expressions() -> Iterator[str]:
    """Return the queries of the dashboard, as Grafana sends them."""
    for panel in json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")


async def test_the_dashboard_and_the_alerts_name_metrics_that_there_are(tmp_path: Path) -> None:
    """And outcomes that there are; the page has them all."""
    metrics = await all_metrics(tmp_path)
    known = exported(metrics)
    alerts = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    rules = "\n".join(line for line in alerts.splitlines() if "summary" not in line and "description" not in line)
    for text in (rules, *expressions()):
        assert set(NAME.findall(text)) <= known, text
    assert set(re.findall(r'outcome="(\w+)"', alerts)) <= set(OUTCOMES)
    excluded = re.findall(r'outcome!~"([\w|]+)"', alerts)
    assert {name for names in excluded for name in names.split("|")} <= set(OUTCOMES)
    rows = re.findall(r"^\| `(warren_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    labels = {name: re.findall(r"`(\w+)`", names) for name, _, names in rows}
    assert {name: kind for name, kind, _ in rows} == {name: each["kind"] for name, each in metrics.items()}
    assert labels == {name: each.get("labels", []) for name, each in metrics.items()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_them(tmp_path: Path) -> None:
    """The alert rules, and the queries of the dashboard as rules."""
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    queries = tmp_path / "queries.yml"
    queries.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "rules", MONITORING / "alerts.yml", queries],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
