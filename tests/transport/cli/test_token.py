"""`warren token`, and servers that know tokens."""

import json
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.transport.cli.process import Cli
from tests.transport.cli.serving import serve
from tests.transport.clients import knock
from tests.transport.http.tokens import config, signed
from warren.base.tenant_limits import TokenLimits
from warren.transport.access.token_list import Token, hash_of, read_logins, read_tokens, with_token
from warren.transport.cli.tokens import change

LIST = "tokens.toml"


def made(cli: Cli, *args: str) -> dict[str, Any]:
    """Make a token; return its row, with the token."""
    found = cli.run("token", "new", *args, "--token-file", LIST, "--output", "json").data
    assert isinstance(found, dict)
    return found


def rows(cli: Cli) -> list[dict[str, Any]]:
    """Return the tokens of the list."""
    found = cli.run("token", "list", "--token-file", LIST, "--output", "json").data["tokens"]
    assert isinstance(found, list)
    return found


def test_a_token_is_shown_once(cli: Cli) -> None:
    """The file has its hash, and only its owner may read the file."""
    first = made(cli, "ci")
    plain = cli.run("token", "new", "ci", "--token-file", LIST, "--expires", "30d", "--tenant", "acme").out.strip()
    path = cli.folder / LIST
    assert plain not in path.read_text()
    assert first["token"] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in cli.folder.iterdir() if "tokens" in path.name] == [LIST]
    assert [(row["hash"], row["tenant"]) for row in rows(cli)] == [
        (first["hash"], "default"),
        (hash_of(plain), "acme"),
    ]
    assert rows(cli)[0]["expires"] is None
    assert plain[:8] not in cli.run("token", "list", "--token-file", LIST).out


def test_the_figures_of_all_tenants_are_no_right_of_one_by_default(cli: Cli) -> None:
    """A token of another tenant than the default one gets the scope for them only if it is asked for."""
    made(cli, "ci")
    made(cli, "ci", "--tenant", "acme")
    made(cli, "operator", "--tenant", "acme", "--scope", "metrics:read")
    assert ["metrics:read" in row["scopes"] for row in rows(cli)] == [True, False, True]
    assert set(rows(cli)[0]["scopes"]) - set(rows(cli)[1]["scopes"]) == {"metrics:read"}


def test_the_limits_of_a_token(cli: Cli) -> None:
    """They are in the file, where a server reads them, and in the list; a bad one is named, and nothing is written."""
    new = ("token", "new", "ci", "--token-file", LIST)
    for bad, named in (
        ("turns", "NAME=N"),
        ("sessions=0", "sessions must be above 0"),
        ("colours=3", "'colours' is none of sessions, running_turns"),
    ):
        refused = cli.run(*new, "--limit", bad)
        assert (refused.code, named in refused.err) == (2, True), refused.err
    assert not (cli.folder / LIST).exists()
    limits = {"running_turns": 2, "turns_per_minute": 30}
    row = made(cli, "ci", "--limit", "running_turns=2", "--limit", "turns_per_minute=30")
    made(cli, "web")
    assert (row["limits"], [each["limits"] for each in rows(cli)]) == (limits, [limits, {}])
    assert "running_turns=2 turns_per_minute=30" in cli.run("token", "list", "--token-file", LIST).out
    (login, _) = read_logins((cli.folder / LIST).read_bytes()).values()
    assert login.principal.limits == TokenLimits(**limits)


def test_what_is_revoked(cli: Cli) -> None:
    """A name in its tenant, with all its tokens, or one by its hash; nothing where none is meant."""
    old, _, other, foreign = (made(cli, *args) for args in (["ci"], ["ci"], ["web"], ["ci", "--tenant", "acme"]))
    assert cli.run("token", "revoke", old["hash"].removeprefix("sha256:")[:8], "--token-file", LIST).code == 0
    assert len(rows(cli)) == 3
    assert cli.run("token", "revoke", "ci", "--token-file", LIST, "--output", "json").data["revoked"][0]["name"] == "ci"
    assert [row["hash"] for row in rows(cli)] == [other["hash"], foreign["hash"]]
    missed = cli.run("token", "revoke", "ci", "--token-file", LIST)
    assert (missed.code, "no token has the name 'ci'" in missed.err) == (1, True)


def test_what_is_refused(cli: Cli) -> None:
    """A bad name, tenant, scope or file is named, and nothing is written."""
    for args, named in (
        (["new", " "], "$.name"),
        (["new", "ci", "--tenant", "a b"], "$.tenant"),
        (["list"], "$.token_file"),
    ):
        refused = cli.run("token", *args, "--token-file", LIST, "--output", "json")
        assert (refused.code, refused.error["details"]["path"]) == (2, named)
    assert cli.run("token", "new", "ci", "--scope", "node", "--token-file", LIST).code == 2
    assert "--token-file is needed" in cli.run("token", "new", "ci").err
    assert not (cli.folder / LIST).exists()
    (cli.folder / LIST).write_text("[[token]]\nname = 5\n")
    assert cli.run("token", "new", "ci", "--token-file", LIST).code == 2
    assert (cli.folder / LIST).read_text() == "[[token]]\nname = 5\n"


def test_changes_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """None of them is lost."""
    path = tmp_path / LIST
    tokens = [Token(hash=f"sha256:{n:064x}", tenant="acme", name=f"n{n}", scopes=()) for n in range(40)]

    def add(token: Token) -> None:
        change(path, lambda data: with_token(data, token))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, tokens))
    assert {token.name for token in read_tokens(path.read_bytes())} == {token.name for token in tokens}


async def test_a_server_knows_new_tokens(cli: Cli) -> None:
    """Without a restart; it binds an address that others reach, and says what is wrong with a file at its start."""
    first = made(cli, "first")["token"]
    running, address = serve(cli, "--token-file", LIST, "-m", "echo", "--ephemeral", "--workers", "1")
    port = int(address.rpartition(":")[2].removesuffix("/ws"))
    assert await knock(port, Authorization=f"Bearer {first}") == 101
    second = (await trio.to_thread.run_sync(made, cli, "second"))["token"]
    with trio.fail_after(10):
        while await knock(port, Authorization=f"Bearer {second}") != 101:
            pass
    running.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(running.end)).code == 0
    (cli.folder / LIST).write_text("[[token]]\nhash = \n")
    refused = await trio.to_thread.run_sync(cli.run, "serve", "--token-file", LIST, "--ephemeral", "--output", "json")
    assert (refused.code, refused.error["details"]["path"]) == (2, "$.token_file")
    assert "line 2" in refused.error["message"]


async def test_a_call_ends_with_the_token_of_its_client(cli: Cli) -> None:
    """The answer of a request that waits for a turn is 401 once its token is revoked; the turn goes on."""
    first, token = made(cli, "first")["token"], made(cli, "second")["token"]
    model = cli.script({"text": "whole", "delay": 6})
    running, address = serve(cli, "--token-file", LIST, "-m", model, "--ephemeral")
    url = address.replace("ws:", "http:").removesuffix("/ws")
    answers: list[httpx.Response] = []

    async def ask(client: httpx.AsyncClient) -> None:
        answers.append(
            await client.post("/sessions", json={"prompt": "hi"}, headers={"Authorization": f"Bearer {token}"})
        )

    bearer = {"Authorization": f"Bearer {first}"}
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:

        async def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await client.get("/sessions", headers=bearer)).json()["sessions"]
            return found

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, client)
                while not await listed():
                    pass
                await trio.to_thread.run_sync(partial(cli.run, "token", "revoke", "second", "--token-file", LIST))
            assert answers[0].status_code == 401
            session_id = (await listed())[0]["session_id"]
            while "whole" not in (await client.get(f"/sessions/{session_id}/history", headers=bearer)).text:
                pass
    running.signal(signal.SIGTERM)
    await trio.to_thread.run_sync(running.end)


async def test_a_server_knows_signed_tokens(cli: Cli) -> None:
    """The settings are the table `[jwt]` of the file, or variables; a bad one is named."""
    jwt = config(cli.folder)
    audience = json.dumps(list(jwt.audience))
    (cli.folder / "c.toml").write_text(f'[jwt]\nissuer = "{jwt.issuer}"\naudience = {audience}\nkeys = "{jwt.keys}"\n')
    running, address = serve(cli, "--config", "c.toml", "-m", "echo", "--ephemeral")
    port = int(address.rpartition(":")[2].removesuffix("/ws"))
    assert await knock(port, Authorization=f"Bearer {signed()}") == 101
    assert await knock(port) == 401
    running.signal(signal.SIGTERM)
    await trio.to_thread.run_sync(running.end)
    env = {"WARREN_JWT_ISSUER": "https://i.example", "WARREN_JWT_KEYS": "http://i.example/keys"}
    refused = await trio.to_thread.run_sync(lambda: cli.run("serve", "--ephemeral", "--output", "json", env=env))
    assert (refused.code, refused.error["details"]["path"]) == (2, "$.jwt.audience")
