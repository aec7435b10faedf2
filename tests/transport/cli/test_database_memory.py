"""The memory in the database of a store, as a user meets it: real processes, a real server."""

import json
from collections.abc import Iterator

import pytest

from tests.support.postgres import database
from tests.transport.cli.compacting import LONG, OFTEN
from tests.transport.cli.process import Cli
from tests.transport.cli.remembering import DOORS, FAILED, found, known, lines, talk
from tests.transport.cli.serving import connected, serve


@pytest.fixture
def on_database(cli: Cli) -> Iterator[Cli]:
    """Run all commands on a database: its address is in the configuration file."""
    with database() as url:
        (cli.folder / ".rkat").mkdir()
        (cli.folder / ".rkat" / "config.toml").write_text(f"store = {json.dumps(url)}\n", encoding="utf-8")
        yield cli


def test_the_commands_of_a_memory(on_database: Cli) -> None:
    """Summarised messages and added texts are found by later commands, until its session is deleted."""
    cli = on_database
    session = talk(cli, "--memory")
    known(cli)
    hit = found(cli, "blue doors", "--session", session[-8:])[0]
    assert (DOORS in hit["content"], hit["session_id"]) == (True, session)
    assert {each["session_id"] for each in found(cli, "blue doors")} == {session, "added"}
    assert found(cli, "deployed") == found(cli, "deployed", "--session", "s2") != []
    again = cli.run("memory", "add", "--output", "json", stdin=lines({"content": DOORS}, {"content": "new"}))
    assert again.data == {"lines": 2, "added": 1}
    assert cli.run("memory", "rebuild").code == 0
    before = cli.run("memory", "stats", "--output", "json").data
    assert (before["embedder"], before["behind"], before["database_bytes"] > 0) == ("bm25", 0, True)
    assert cli.run("sessions", "delete", session).code == 0
    assert [each["session_id"] for each in found(cli, "blue doors")] == ["added"]
    assert cli.run("memory", "stats", "--output", "json").data["sessions"] == before["sessions"] - 1
    assert [each.name for each in (cli.folder / ".rkat").iterdir()] == ["config.toml"]


async def test_gateways_share_a_memory_also_after_a_kill(on_database: Cli) -> None:
    """A text that one has taken in is found by another at once; after kill -9 of the first one it is there, once."""
    cli = on_database
    args = ("--memory", "-m", cli.script({"text": "short"}), *OFTEN)
    first, first_url = serve(cli, *args)
    _, second_url = serve(cli, *args)
    async with connected(second_url) as second:
        async with connected(first_url) as client:
            created = await client.call("session/create", prompt=f"{DOORS} {LONG}")
            session_id = created["session_id"]
            for text in ("second", "third"):
                await client.call("turn/start", session_id=session_id, prompt=f"{text} {LONG}")
            mine = (await client.call("memory/search", query="blue doors", session_id=session_id))["hits"]
            theirs = (await second.call("memory/search", query="blue doors", scope="project"))["hits"]
            assert [hit["session_id"] for hit in mine] == [session_id]
            assert mine == theirs
            first.process.kill()
        first.process.wait()
        assert (await second.call("memory/search", query="blue doors", scope="project"))["hits"] == mine
        _, third_url = serve(cli, *args)
        async with connected(third_url) as third:
            assert (await third.call("memory/search", query="blue doors", scope="project"))["hits"] == mine
            assert (await third.call("memory/search", query=FAILED, scope="project"))["hits"] == []
