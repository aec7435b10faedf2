"""The tokens in a database: all nodes on it let the same clients in, and close the connections of the same ones."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed

from tests.support.postgres import database, name_in, server
from tests.transport.cli.process import Cli
from tests.transport.clients import connect, knock
from tests.transport.cluster.nodes import cluster
from tests.transport.rest.clients import client
from warren.base.errors import InvalidParamsError
from warren.base.tenant_limits import TokenLimits
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.storage.postgres.tokens import TokenRow, TokenTable
from warren.transport.access import token_table, watched
from warren.transport.access.access import check_access
from warren.transport.access.config import GatewayConfig
from warren.transport.access.token_list import hash_of, new_token

SCOPES = ("session:read", "session:write", "metrics:read")


async def added(table: TokenTable, name: str, **fields: Any) -> str:
    """Add a new token to the table; return it."""
    token = new_token()
    made = {"tenant": "acme", "name": name, "scopes": SCOPES, "expires": None}
    await table.add(TokenRow(hash=hash_of(token), **made | fields))
    return token


async def test_nodes_share_the_tokens_of_their_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is let in everywhere; the connections of a removed one are closed everywhere, and no others."""
    for module in (watched, token_table):
        monkeypatch.setattr(module, "LOOK", 0.02)
    with database() as url:
        async with (
            cluster(PostgresConfig(url), 2, settings={"token_table": True}) as nodes,
            TokenTable(PostgresConfig(url)) as table,
        ):
            for node in nodes:
                assert await knock(node.port) == 401
            end = datetime.now(UTC) + timedelta(hours=1)
            stays, goes = await added(table, "stays \0", expires=end), await added(table, "goes")
            gone = await added(table, "gone", expires=datetime.now(UTC) - timedelta(seconds=1))
            for node in nodes:
                for token, status in ((stays, 101), (goes, 101), (gone, 401), (new_token(), 401)):
                    await until_answered(node.port, token, status)
                async with client(node.port, Authorization=f"Bearer {stays}") as http:
                    assert (await http.get("/health")).json()["access"] == {"status": "ok"}
                    assert (await http.post("/sessions", json={"prompt": None})).status_code == 201
                    state = (await http.get("/sessions")).json()["sessions"][0]
                    assert (state["tenant"], state["owner"]) == ("acme", "stays \0")
            bearers = [[(b"Authorization", f"Bearer {token}".encode())] for token in (stays, goes)]
            async with (
                connect(nodes[1].port, extra_headers=bearers[0]) as kept,
                connect(nodes[1].port, extra_headers=bearers[1]) as closed,
            ):
                await table.remove([hash_of(goes), "sha256:none"])
                with trio.fail_after(5), pytest.raises(ConnectionClosed) as caught:
                    await closed.next()
                assert caught.value.reason is not None
                assert caught.value.reason.code == 4401
                assert (await kept.call("session/list"))["sessions"]
            server().run(name_in(url), "UPDATE warren.tokens SET scopes = '{session:everything}' RETURNING 1")
            async with client(nodes[0].port, Authorization=f"Bearer {stays}") as http:
                with trio.fail_after(5):
                    while (found := (await http.get("/health")).json()["access"])["status"] == "ok":
                        pass
                assert "scopes[0] must be one of session:read" in found["last_error"]
                server().run(name_in(url), "UPDATE warren.tokens SET scopes = '{metrics:read}' RETURNING 1")
                with trio.fail_after(5):
                    while (found := (await http.get("/health")).json()["access"])["status"] != "ok":
                        pass
                assert (await http.get("/sessions")).status_code == 403


async def until_answered(port: int, token: str, status: int) -> None:
    """Return once a node answers a client with a token so."""
    with trio.fail_after(5):
        while await knock(port, Authorization=f"Bearer {token}") != status:
            pass


async def test_rows_that_people_write_are_checked() -> None:
    """Limits come as JSON; a bad column is named, with the beginning of the row's hash."""
    with database() as url:
        used, watched_table = list[Any](), token_table.WatchedTable(PostgresConfig(url))
        async with TokenTable(PostgresConfig(url)) as table:
            await table.prepare()
            token = await added(table, "ci", limits=b'{"running_turns": 2}')
            for column, value, problem in (
                ("limits", '{"running_turns": 0}', "limits.running_turns: must be"),
                ("limits", '{"turns": 1}', "limits"),
                ("limits", "[]", "limits"),
                ("tenant", "a b", "tenant must be 1 to 64"),
                ("name", " ", "name must"),
            ):
                await watched_table.look(table, used.append)
                assert (len(used), watched_table.problem) == (1, None)
                (before,) = server().run(name_in(url), f"SELECT {column}::text FROM warren.tokens")  # noqa: S608 - a name of this test
                write = "UPDATE warren.tokens SET {} = '{}'"
                server().run(name_in(url), write.format(column, value))
                await watched_table.look(table, used.append)
                assert f"{hash_of(token)[:19]}: {problem}" in (watched_table.problem or "")
                server().run(name_in(url), write.format(column, *before))
                await watched_table.look(table, used.append)
                del used[0]
        (login,) = used[0].values()
        assert login.principal.limits == TokenLimits(running_turns=2)


async def test_a_database_that_is_away_changes_no_tokens() -> None:
    """Those that were read last stay in use, and those of the time after are read when it is back."""
    with database() as url:
        used = list[object]()
        look = token_table.WatchedTable(PostgresConfig(url))
        async with TokenTable(PostgresConfig(url)) as table:
            await table.prepare()
            await added(table, "ci")
            await look.look(table, used.append)
            await look.look(table, used.append)
            assert len(used) == 1
            server().run(name_in(url), "ALTER TABLE warren.tokens_version RENAME TO away")
            await look.look(table, used.append)
            assert (len(used), look.problem is not None) == (1, True)
            server().run(name_in(url), "ALTER TABLE warren.away RENAME TO tokens_version")
            await look.look(table, used.append)
            assert (len(used), look.problem) == (2, None)


def test_tokens_of_a_database_by_commands(cli: Cli) -> None:
    """They are made, listed and revoked as those of a file, and shown once."""
    with database() as url:

        def run(*args: str) -> Any:
            found = cli.run("token", *args, "--token-table", "--store", url, "--output", "json")
            assert found.code == 0, found.err
            return found.data

        made = run("new", "ci", "--tenant", "acme", "--expires", "1h")
        run("new", "web")
        assert [(each["name"], each["tenant"]) for each in run("list")["tokens"]] == [
            ("ci", "acme"),
            ("web", "default"),
        ]
        assert run("list")["tokens"][0] == {name: value for name, value in made.items() if name != "token"}
        stored = server().run(name_in(url), "SELECT row_to_json(t)::text FROM warren.tokens t")
        assert made["token"] not in json.dumps(stored)
        assert [each["name"] for each in run("revoke", "ci", "--tenant", "acme")["revoked"]] == ["ci"]
        assert [each["name"] for each in run("list")["tokens"]] == ["web"]
        assert "no token has the name" in cli.run("token", "revoke", "ci", "--token-table", "--store", url).err
    (cli.folder / "store").mkdir()
    assert cli.run("run", "hi", "--store", "store").code == 0
    refused = cli.run("token", "list", "--token-table", "--store", "store", "--output", "json")
    assert (refused.code, refused.error["details"]["path"]) == (2, "$.token_table")
    assert cli.run("token", "list", "--token-table", "--token-file", "x").code == 2
    assert "--token-table" in cli.run("token", "list").err


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"runtime": Config()},
        {"runtime": Config(store=StoreConfig(Path("store")))},
        {"token": "x"},
        {"token_file": "tokens.toml"},
    ],
)
def test_a_table_needs_a_database_and_excludes_other_lists(settings: dict[str, Any]) -> None:
    """A server without one does not start."""
    with pytest.raises(InvalidParamsError) as caught:
        check_access(GatewayConfig(token_table=True, **settings))
    assert caught.value.path in ("$.token_table", "$.token_file")
