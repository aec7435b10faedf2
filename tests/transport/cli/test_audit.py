"""`warren audit` on a store that a server has open, and over that server."""

import json
import signal

from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.serving import connected, serve


async def test_the_audit_of_a_live_store(cli: Cli) -> None:
    """Its entries are lines of the file and of the server, also as they come; JSON is a line for each."""
    server, url = serve(cli, "-m", "echo")
    async with connected(url) as client:
        one = (await client.call("session/create", prompt=None))["session_id"]
        await client.call("session/delete", session_id=one)
        lines = cli.run("audit", "--session", one).out.splitlines()
        assert [line.split("\t")[1:6] for line in lines] == [
            ["default", "local", action, "done", one] for action in ("create", "delete")
        ]
        there = cli.run("audit", "--action", "delete", "--output", "json", "--server", url)
        assert there.code == 0, there.err
        (entry,) = map(json.loads, there.out.splitlines())
        assert (entry["session_id"], entry["source"]) == (one, "127.0.0.1")
        everything = cli.run("audit", "--all-tenants", "--output", "json").out.splitlines()
        assert [json.loads(line)["number"] for line in everything] == [1, 2]
        refused = cli.run("audit", "--all-tenants", "--server", url)
        assert "tenant:admin" in one_line(refused, refused.code)
        assert "action" in cli.run("audit", "--action", "burn").err
        following = cli.start("audit", "--follow", "--action", "create", "--output", "json")
        said = following.read_until(f'"session_id":"{one}"')
        two = (await client.call("session/create", prompt=None))["session_id"]
        said += following.read_until(two)
        following.signal(signal.SIGINT)
        ended = following.end()
        found = [json.loads(line)["session_id"] for line in (said + ended.out).splitlines()]
        assert (found, ended.code) == ([one, two], 130)
    server.signal(signal.SIGTERM)
    assert server.end().code == 0
