"""Signed calls to `warren serve`: what was acknowledged is there once, whoever is killed and however often it came."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.signing import github, standard
from tests.transport.cli.process import LIMIT, Cli, Running
from tests.transport.cli.serving import serve

BODY: Final = b'{"title": "Dig deeper"}'
SECRET: Final = "It's a Secret to Everybody"  # noqa: S105 - it is none
UNHURRIED: Final = {"chunks": ["do", "ne"], "chunk_delay": 0.5}
"""An answer during which its process is killed."""
Signed = Callable[[str, str, bytes], Mapping[str, str]]


def server(cli: Cli, place: Path | str, model: str) -> tuple[Running, str]:
    """Start a server on a store; return it and its address."""
    running, url = serve(cli, "--store", str(place), "-m", model)
    return running, url.replace("ws://", "http://").removesuffix("/ws")


def made(cli: Cli, place: Path | str, *args: str) -> Any:
    """Make a trigger with the command, beside the server; return it."""
    return cli.run("triggers", "create", "{body.title}", *args, "--store", str(place), "--output", "json").data


def send(url: str, trigger: Any, call_id: str, signed: Signed = standard) -> httpx.Response:
    """Send a signed call."""
    headers = dict(signed(trigger["secret"], call_id, BODY))
    return httpx.post(f"{url}/triggers/{trigger['trigger_id']}", content=BODY, headers=headers, timeout=LIMIT)


def said(url: str, session_id: str) -> list[tuple[str, str]]:
    """Return the role and the text of each message of a session, once every prompt has its answer."""
    deadline = time.monotonic() + LIMIT
    while True:
        messages = httpx.get(f"{url}/sessions/{session_id}/history", timeout=LIMIT).json()["messages"]
        found = [each["message"] for each in messages]
        texts = [
            (each["role"], str(each.get("content", each))) for each in found if each["role"] in ("user", "assistant")
        ]
        inputs = httpx.get(f"{url}/sessions/{session_id}/inputs", timeout=LIMIT).json()["inputs"]
        if texts and texts[-1][0] == "assistant" and not inputs:
            return texts
        assert time.monotonic() < deadline, (texts, inputs)
        time.sleep(0.05)


def test_the_server_is_killed_right_after_its_answer(cli: Cli, place: Path | str) -> None:
    """The prompt is there once, and its turn runs when a server is there again; so for a call that is sent again."""
    model = cli.script(UNHURRIED)
    session_id = cli.run("run", "hello", "--store", str(place), "-m", model, "--output", "json").data["session_id"]
    new = made(cli, place)
    own = made(cli, place, "--session", session_id, "--scheme", "github", "--secret-file", secret_file(cli))
    answers = list[tuple[Any, Signed, httpx.Response]]()
    calls: tuple[tuple[Any, Signed], ...] = ((new, standard), (own, github))
    for trigger, signed in calls:
        running, url = server(cli, place, model)
        answer = send(url, trigger, "call-1", signed)
        running.process.kill()
        running.process.wait()
        assert answer.status_code == 202, answer.text
        answers.append((trigger, signed, answer))
    running, url = server(cli, place, model)
    for trigger, signed, answer in answers:
        again = send(url, trigger, "call-1", signed)
        assert (again.status_code, again.json()) == (202, answer.json())
        roles = said(url, answer.json()["session_id"])
        prompts = [text for role, text in roles if role == "user"]
        assert prompts.count("Dig deeper") == 1
        assert roles[-1][0] == "assistant"
        assert "done" in roles[-1][1]
    listed = httpx.get(f"{url}/triggers", timeout=LIMIT).json()["triggers"]
    assert [[each["state"] for each in one["deliveries"]] for one in listed] == [["fired"], ["fired"]]
    assert SECRET not in str(listed)
    assert new["secret"] not in str(listed)
    assert len(httpx.get(f"{url}/sessions", timeout=LIMIT).json()["sessions"]) == 2


def secret_file(cli: Cli) -> str:
    """Write the secret into a file, and return its name."""
    (cli.folder / "secret.txt").write_text(f"{SECRET}\n", encoding="utf-8")
    return "secret.txt"


def test_the_same_call_comes_to_two_nodes_at_once(cli: Cli, place: Path | str) -> None:
    """All get the same answer, and there is one session with one prompt; other calls have their own."""
    (_, one), (_, two) = (server(cli, place, "echo") for _ in range(2))
    trigger = made(cli, place)
    with ThreadPoolExecutor(20) as pool:
        sent = [
            (number, pool.submit(send, url, trigger, f"call-{number}")) for number in (1, 2) for url in (one, two) * 5
        ]
        answers = {(number, each.result().status_code, each.result().text) for number, each in sent}
    assert len(answers) == 2, answers
    assert {status for _, status, _ in answers} == {202}
    listed = httpx.get(f"{two}/triggers", timeout=LIMIT).json()["triggers"]
    sessions = [each["session_id"] for each in listed[0]["deliveries"]]
    assert len(set(sessions)) == len(sessions) == 2
    for session_id in sessions:
        assert [role for role, _ in said(one, session_id)] == ["user", "assistant"]
    assert len(httpx.get(f"{one}/sessions", timeout=LIMIT).json()["sessions"]) == 2
