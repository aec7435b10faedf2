"""Files over HTTP: with requests as forms, and back as they are."""

import tracemalloc
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio

from tests.transport.rest.clients import create, port_of, problem, rest
from tests.transport.rest.serving import served
from warren.models.catalog import ModelEntry
from warren.settings.config import Config, Limits, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.rest.forms import FORM

MIB = 1024 * 1024
MAGIC = b"\x89PNG\r\n\x1a\n"
PNG = MAGIC + bytes(range(256))
HTML = b"<script>alert(1)</script>"


def form(params: str, *files: tuple[str, Any]) -> dict[str, Any]:
    """Return the body of a request."""
    return {"files": [("params", (None, params, "application/json")), *files]}


async def test_prompts_with_files(tmp_path: Path) -> None:
    """On creation, in a turn and into the inbox; a file of 20 MB is in memory once, and its request has no bound."""
    photo = MAGIC + bytes(20 * MIB - len(MAGIC))
    async with served(tmp_path) as (service, http):
        made = await http.post(
            "/sessions",
            **form('{"prompt": "look", "title": "T"}', ("a", ("dir/a.png", PNG, "image/png")), ("b", ("b.md", b"two"))),
        )
        assert made.status_code == 201, made.text
        assert made.json()["text"] == f"look\n[image a.png: {len(PNG)} bytes]\n[text b.md: 3 bytes]"
        here = made.headers["location"]
        there = f"{here}/messages"
        body = http.build_request("POST", there, **form('{"prompt": "go"}', ("a", ("p.png", photo)))).read()
        boundary = body[2 : body.index(b"\r\n")].decode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        tracemalloc.start()
        try:
            result = await http.post(f"{here}/messages", content=body, headers=headers)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert result.json()["text"] == f"go\n[image p.png: {len(photo)} bytes]"
        assert peak < 45 * MIB
        again = form(f'{{"prompt": "x", "mode": "queue", "attachments": [{{"sha256": "{sha256(PNG).hexdigest()}"}}]}}')
        answer = await http.post(f"{here}/messages", headers={"Idempotency-Key": "k"}, **again)
        assert answer.json()["text"] == f"x\n[image a.png: {len(PNG)} bytes]"
        assert (await service.read(here.rpartition("/")[2])).state.message_count == 6


async def test_bad_forms_are_refused_by_the_name_of_the_part(tmp_path: Path) -> None:
    """The connection stays of use, and the session is as it was."""
    config = Config(
        store=StoreConfig(tmp_path), limits=Limits(max_attachment=1000), models={"echo": ModelEntry(images=True)}
    )
    large = ("photo", ("a.png", MAGIC + bytes(1000), "image/png"))
    good = '{"prompt": "look"}'
    async with open_supervisor(config, environ={}) as service, rest(service, runtime=config) as http:
        here = f"/sessions/{await create(http)}/messages"
        cases: list[tuple[dict[str, Any], int, str]] = [
            (form(good, large), 413, "$.photo"),
            (form(good, ("a", ("a.zip", b"PK\xff", "application/zip"))), 409, "$.a.media_type"),
            (form(good, ("a", ("a.png", PNG)), ("a", ("b.png", b"\0"))), 409, "$.a[1].media_type"),
            (form("{", ("a", ("a.png", PNG))), 400, "$.params"),
            (form("[]"), 422, "$.params"),
            ({"files": [("a", ("a.png", PNG))]}, 422, "$.params"),
            (form('{"prompt": "x", "model_": "y"}', ("a", ("a.png", PNG))), 422, "$.model_"),
            (form(good, *(("a", ("a.png", PNG)) for _ in range(21))), 413, "$.body"),
            (form(f'{{"prompt": "{"x" * MIB}"}}'), 413, "$.params"),
            (
                {"content": b"--b\r\nnonsense", "headers": {"Content-Type": f"{FORM}; boundary=b"}},
                400,
                "$.body",
            ),
            ({"content": b"", "headers": {"Content-Type": FORM}}, 400, "$.headers.content-type"),
        ]
        for body, status, path in cases:
            answer = await http.post(here, **body)
            assert (answer.status_code, answer.json()["details"]["path"]) == (status, path), answer.text
        answer = await http.post(f"{here.rpartition('/')[0]}/interrupt", **form("{}"))
        assert answer.status_code == 415
        assert (await http.get(here.rpartition("/")[0])).json()["state"]["message_count"] == 0


async def test_forms_take_the_room_of_what_has_come() -> None:
    """Many that announce much and send little keep nobody out; one beyond the room is refused, and leaves it."""
    config = Config(limits=Limits(upload_bytes=4096))
    head = (
        b"POST /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 67108864\r\n\r\n--b\r\n"
    )
    async with (
        open_supervisor(config, environ={}) as service,
        rest(service, runtime=config) as http,
        AsyncExitStack() as streams,
    ):
        for _number in range(4):
            stream = await streams.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port_of(http)))
            await stream.send_all(head)
        good, large = form('{"prompt": "x"}', ("a", ("a.png", PNG))), form("{}", ("a", ("a.png", bytes(5000))))
        for body, status in ((good, 201), (large, 503), (good, 201)):
            answer = await http.post("/sessions", **body)
            assert answer.status_code == status, answer.text
            assert status == 201 or answer.json()["details"]["cause"] == "uploads"


async def test_a_file_as_it_is(tmp_path: Path) -> None:
    """With its type and its name; no page of a session can run in the origin of the console."""
    async with served(tmp_path) as (_, http):
        files = [("a", ("ä b.png", PNG)), ("b", ("x.html", HTML, "text/html"))]
        here = (await http.post("/sessions", **form('{"prompt": "look"}', *files))).headers["location"]
        place, page = (f"{here}/attachments/{sha256(each).hexdigest()}/content" for each in (PNG, HTML))
        whole = await http.get(place)
        assert (whole.status_code, whole.content) == (200, PNG)
        assert whole.headers["content-type"] == "image/png"
        assert whole.headers["content-disposition"] == "inline; filename*=UTF-8''%C3%A4%20b.png"
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert whole.headers["content-security-policy"] == "sandbox; default-src 'none'"
        shown = await http.get(page)
        assert shown.headers["content-disposition"].startswith("attachment; ")
        assert (shown.headers["content-type"], shown.content) == ("text/html; charset=utf-8", HTML)
        etag = {"If-None-Match": whole.headers["etag"]}
        assert (await http.get(place, headers=etag)).status_code == 304
        assert (await http.head(place)).headers["content-length"] == str(len(PNG))
        for asked, part, named in (
            ("bytes=2-5", PNG[2:6], "bytes 2-5/264"),
            ("bytes=260-", PNG[260:], "bytes 260-263/264"),
            ("bytes=-3", PNG[-3:], "bytes 261-263/264"),
        ):
            found = await http.get(place, headers={"Range": asked})
            assert (found.status_code, found.content, found.headers["content-range"]) == (206, part, named)
        beyond = await http.get(place, headers={"Range": "bytes=264-"})
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */264")
        assert (await http.get(place, headers={"Range": "lines=1-2"})).content == PNG
        elsewhere = f"/sessions/{await create(http)}/attachments/{place.rpartition('attachments/')[2]}"
        assert problem(await http.get(elsewhere))[:2] == (404, "INVALID_PARAMS")
