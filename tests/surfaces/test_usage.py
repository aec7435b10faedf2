"""The report on the use of models, over REST and on the command line."""

from decimal import Decimal
from pathlib import Path

from tests.support.models import reply as answered
from tests.support.models import says
from tests.transport.cli.process import Cli
from tests.transport.clients import HOST, gateway
from tests.transport.gateway.serving import runtime
from tests.transport.http.tokens import SCOPES, listed
from tests.transport.rest.clients import client
from warren.client import connect
from warren.conversation.usage import Usage

CALLS = [Usage(10, 5, cost=Decimal("0.25")), Usage(4, 2), Usage(1, 1, cost=Decimal("0.1"))]
"""The calls of a model that tells its costs, but for one."""


async def test_each_tenant_has_a_report_of_its_own(tmp_path: Path) -> None:
    """An operator gets those of all tenants; who may not read sessions gets none."""
    path = tmp_path / "tokens.toml"
    ann, bob = listed(path, tenant="acme"), listed(path, tenant="other")
    operator, lame = listed(path, scopes=(*SCOPES, "tenant:admin")), listed(path, scopes=("session:write",))
    model = says(*(answered("done", usage=usage) for usage in CALLS))
    async with runtime(tmp_path / "store", fixed=model) as service, gateway(service, token_file=path) as port:
        for token in (ann, ann, bob):
            async with client(port, Authorization=f"Bearer {token}") as http:
                made = await http.post("/sessions", json={"prompt": "hi", "model": "m", "provider": "fixed"})
                assert made.status_code == 201, made.text

        async def report(token: str, query: str = "") -> dict[str, object]:
            async with client(port, Authorization=f"Bearer {token}") as http:
                found = (await http.get(f"/usage{query}")).json()
            assert isinstance(found, dict)
            return found

        theirs = {"turns": 2, "input_tokens": 14, "output_tokens": 7, "cost": "0.25", "unpriced_tokens": 6}
        found = await report(ann, "?by=model&since=2026-01-01T00:00:00Z")
        assert found["rows"] == [{"key": "m", **found["total"]}]  # type: ignore[dict-item]
        assert found["total"].items() >= theirs.items()  # type: ignore[attr-defined]
        assert (await report(ann, "?until=2026-01-01T00:00:00Z"))["rows"] == []
        assert [row["key"] for row in (await report(bob, "?by=tenant"))["rows"]] == ["other"]  # type: ignore[attr-defined]
        everybody = (await report(operator, "?by=tenant&all_tenants=true"))["rows"]
        assert [row["key"] for row in everybody] == ["acme", "other"]  # type: ignore[attr-defined]
        assert (await report(operator, "?by=model&all_tenants=true"))["total"]["turns"] == 3  # type: ignore[index]
        async with connect(f"ws://{HOST}:{port}", token=operator, tenant="acme") as acting:
            assert [row.key for row in (await acting.usage(by="tenant")).rows] == ["acme"]
        for query in ("/usage?by=tenant&all_tenants=true", "/tenants?all_tenants=true"):
            async with client(port, Authorization=f"Bearer {ann}") as http:
                assert (await http.get(query)).json()["details"] == {"scope": "tenant:admin"}
        async with client(port, Authorization=f"Bearer {operator}") as http:
            (entry,) = (await http.get("/audit?action=read")).json()["entries"]
            assert (entry["outcome"], entry["details"]) == ("done", {"tenant": "*"})
        async with client(port, Authorization=f"Bearer {ann}") as http:
            found = (await http.get("/tenants")).json()
            assert [(row["tenant"], row["sessions"]) for row in found["tenants"]] == [("acme", 2)]
        assert (await report(lame))["code"] == "PERMISSION_DENIED"
        for query, field in (("?by=week", "by"), ("?since=yesterday", "since"), ("?until=2026-01-01", "until")):
            bad = await report(ann, query)
            assert (bad["code"], bad["details"]) == ("INVALID_PARAMS", {"path": f"$.{field}"})
        async with connect(f"ws://{HOST}:{port}", token=bob) as remote:
            assert (await remote.usage(by="session")).total.cost == Decimal("0.1")


def test_the_command_shows_a_store(cli: Cli) -> None:
    """By tenant all of them, else those of one; an unknown cost is no number; what is no time is named."""
    for tenant in ("default", "acme"):
        cli.run("run", "hi there", "--tenant", tenant, "--label", "team=red")
    rows = [line.split("\t") for line in cli.run("usage", "--by", "tenant", "--all-tenants").out.splitlines()]
    assert rows == [[tenant, "1", "2", "2", "0", "0", "unknown", "4"] for tenant in ("acme", "default")]
    label = cli.run("usage", "--by", "label", "--tenant", "acme", "--since", "1h", "--output", "json").data
    assert (label["rows"][0]["key"], label["count"], label["total"]["cost"]) == ("team=red", 1, None)
    assert cli.run("usage", "--until", "1h").err == "no usage\n"
    bad = cli.run("usage", "--since", "yesterday")
    assert bad.code == 2
    assert "'yesterday' is no time" in bad.err
