"""The examples of the page on REST run as they are printed, and its table is that of the routes."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trio

from tests.transport.clients import gateway
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.rest.openapi import STATUSES
from warren.transport.rest.routes import ROUTES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")


def test_the_page_has_every_route() -> None:
    """In the order of the table."""
    listed = re.findall(r"^\| `([A-Z]+) (/\S*)` \| `(\S+)` \|$", PAGE, flags=re.MULTILINE)
    assert listed == [(row.verb, row.path, row.method.name) for row in ROUTES]


def test_the_page_has_every_status() -> None:
    """Everything in the OpenAPI document is on this page for people."""
    assert {str(status) for status in STATUSES} <= set(re.findall(r"^\| (\d{3}) \|", PAGE, flags=re.MULTILINE))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's session is one with curl")
async def test_the_session_with_curl_runs_as_printed(tmp_path: Path) -> None:
    """Each command does what is said of it, and the stream has both turns."""
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    config = Config(store=StoreConfig(tmp_path / "store"))
    async with open_supervisor(config, environ={}) as service, gateway(service) as port:
        run = await trio.run_process(
            ["bash", "-euo", "pipefail", "-c", script.replace("8420", str(port))],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=tmp_path,
        )
    assert run.returncode == 0, run.stdout
    answers = [json.loads(line) for line in run.stdout.decode().replace("}{", "}\n{").splitlines()]
    assert [answer.get("text") for answer in answers[:2]] == ["hello there", "and again"]
    assert answers[2]["state"]["message_count"] == 4
    assert [entry["position"] for entry in answers[3]["messages"]] == [2]
    assert answers[4] == {"archived": True}
    events = (tmp_path / "events.txt").read_text()
    assert events.count("event: run_started\n") == events.count("event: run_completed\n") == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's form is sent by curl")
async def test_the_form_with_curl_runs_as_printed(tmp_path: Path) -> None:
    """The model gets the prompt and the file."""
    (command,) = re.findall(r"^\$ (curl .* -F .*)$", PAGE, flags=re.MULTILINE)
    photo = b"\x89PNG\r\n\x1a\n" + bytes(100)
    (tmp_path / "photo.png").write_bytes(photo)
    config = Config(store=StoreConfig(tmp_path / "store"))
    async with open_supervisor(config, environ={}) as service, gateway(service) as port:
        session_id = (await service.create_session(None)).session_id
        line = command.replace("8420", str(port)).replace("$session", session_id)
        run = await trio.run_process(["bash", "-c", line], capture_stdout=True, cwd=tmp_path)
    assert json.loads(run.stdout)["text"] == f"What is this?\n[image photo.png: {len(photo)} bytes]"
