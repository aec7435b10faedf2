"""Files that prompts have by URL: fetched and stored if the host allows it, and otherwise sent on as URLs."""

import functools
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.actors.tools.pages import Names, certificate
from tests.support.runtime import transcript
from warren import Config, StoreConfig, open_supervisor
from warren.actors.turn.attaching import FETCH_SECONDS, fetched
from warren.base.errors import CapacityExceededError, SessionBusyError
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits
from warren.calls.facade import RuntimeService
from warren.conversation.attachments import Attachment, Blob, File
from warren.conversation.events import RunStarted
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolError
from warren.settings.config import Limits
from warren.settings.tool_config import ToolsConfig

HOST = "files.example"
LOCAL = ToolsConfig(fetch_allow=("127.0.0.0/8",))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
JPEG = b"\xff\xd8\xff" + bytes(20)
PDF = b"%PDF-1.7 and so on"
Pages = Mapping[str, tuple[str, bytes]]


class Seeing:
    """A model that takes images and PDF, and tells the URL or the bytes of each file of the prompt."""

    kinds = frozenset({"image", "pdf"})

    async def complete(self, request: ModelRequest, _emit: object) -> ModelReply:
        """Answer."""
        last = request.messages[len(request.messages) - 1]
        files = last.attachments if isinstance(last, UserMessage) else ()
        seen = [each.url or (await request.files.read(each, 0, each.size)).hex() for each in files]
        return ModelReply(AssistantMessage((TextBlock(" ".join(seen)),)), Usage(1, 1))


class Stuck(Seeing):
    """A model that never answers."""

    async def complete(self, _request: ModelRequest, _emit: object) -> ModelReply:
        """Wait."""
        await trio.sleep_forever()


@attrs.define
class Site:
    """A server of files.

    Attributes:
        port: its port.
        pages: the status line, with headers, and the body at each path.
        asked: the paths that were asked for.
    """

    port: int
    pages: dict[str, tuple[str, bytes]]
    asked: list[str]

    def url(self, path: str) -> str:
        """Return the address of a page."""
        return f"https://{HOST}:{self.port}{path}"


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext:
    """The TLS settings of a server whose certificate this process trusts."""
    server, pem = certificate(HOST)
    (tmp_path / "ca.pem").write_text(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return server


@asynccontextmanager
async def serve(tls: ssl.SSLContext, pages: Pages | None = None) -> AsyncIterator[Site]:
    """Serve files under a name that means this machine."""
    trio.socket.set_custom_hostname_resolver(Names("127.0.0.1"))
    made = Site(0, dict(pages or {}), [])
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, tls, host="127.0.0.1", https_compatible=True)
        socket_listener = listeners[0].transport_listener
        assert isinstance(socket_listener, trio.SocketListener)
        made.port = socket_listener.socket.getsockname()[1]
        nursery.start_soon(functools.partial(trio.serve_listeners, functools.partial(_answer, made), listeners))
        yield made
        nursery.cancel_scope.cancel()


async def _answer(site: Site, stream: trio.SSLStream[trio.SocketStream]) -> None:
    try:
        head = await stream.receive_some()
    except (trio.BrokenResourceError, ssl.SSLError):
        return
    path = head.split(b" ")[1].decode()
    site.asked.append(path)
    status, body = site.pages[path]
    answer = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
    try:
        await stream.send_all(answer)
        await stream.aclose()
    except trio.BrokenResourceError:  # the client has read enough
        return


@asynccontextmanager
async def runtime(
    tools: ToolsConfig | None, model: Seeing | None = None, **settings: Any
) -> AsyncIterator[RuntimeService]:
    """A runtime with these tools, whose model sees files."""
    config = Config(model="test", tools=tools, **settings)
    async with open_supervisor(config, providers={"test": model or Seeing()}) as service:
        yield service


async def files_told(service: RuntimeService, session_id: str, turns: int = 1) -> list[Attachment]:
    """Return the files of the events that begin so many turns."""
    found = list[Attachment]()
    async with service.subscribe(session_id, after_seq=0) as events:
        async for each in events:
            if isinstance(each.event, RunStarted):
                found += each.event.attachments
                turns -= 1
                if not turns:
                    break
    return found


async def test_a_file_by_url_is_kept_by_its_hash(tls: ssl.SSLContext, tmp_path: Path) -> None:
    """The model reads the bytes of the day of the prompt; they outlive the address, the process, and a redirect."""
    pages = {
        "/a.png": ("200 OK", PNG),
        "/old": ("302 Found\r\nlocation: /b", b""),
        "/b": ("200 OK", JPEG),
        "/c%20d.pdf": ("200 OK", PDF),
    }
    store = StoreConfig(tmp_path / "store")
    async with serve(tls, pages) as site, runtime(LOCAL, store=store) as service:
        by_url = File(url=site.url("/a.png"), media_type="image/png")
        session_id = (await service.create_session("look", attachments=[by_url])).session_id
        others = [
            File(url=site.url("/old"), media_type="image/png", name="b"),
            File(url=site.url("/c%20d.pdf"), media_type="application/pdf"),
        ]
        result = await service.start_turn(session_id, "and these", attachments=others, mode="queue")
        assert result.text == f"{JPEG.hex()} {PDF.hex()}"
        again = await service.start_turn(session_id, "again", attachments=[by_url])
        assert again.text == PNG.hex()
        told = await files_told(service, session_id, turns=3)
    async with runtime(None, store=store) as service:
        prompts = [each for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        kept = [file for each in prompts for file in each.attachments]
        assert [(file.name, file.media_type, file.url, file.not_kept) for file in kept] == [
            ("a.png", "image/png", None, None),
            ("b", "image/jpeg", None, None),
            ("c d.pdf", "application/pdf", None, None),
            ("a.png", "image/png", None, None),
        ]
        assert told == kept
        assert (await service.attachment(session_id, str(kept[1].sha256))).data == JPEG
    assert site.asked == ["/a.png", "/old", "/b", "/c%20d.pdf", "/a.png"]


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ({"/x.png": ("404 Not Found", b"")}, "the server answered 404 Not Found"),
        ({"/x.png": ("200 OK\r\ncontent-type: image/png", b"<html>sign in</html>")}, "text/plain, and not image/png"),
        ({"/x.png": ("200 OK", PDF)}, "application/pdf, and not image/png"),
        ({"/x.png": ("200 OK", PNG + bytes(60))}, "more than 100 bytes"),
        ({"/x.png": ("200 OK", b"")}, "must not be empty"),
        ({"/x.png": ("302 Found\r\nlocation: https://10.0.0.1/", b"")}, "10.0.0.1, which is not a public address"),
        ({"/x.png": ("302 Found\r\nlocation: file:///etc/passwd", b"")}, "must begin with http"),
        ({"/x.png": ("302 Found\r\nlocation: https://xn--a/", b"")}, "could not be fetched: Codepoint"),
    ],
)
async def test_a_file_that_cannot_be_had_stays_a_url(tls: ssl.SSLContext, pages: Pages, why: str) -> None:
    """The prompt goes on with the URL, and the event and the history say why the file is not kept."""
    async with serve(tls, pages) as site, runtime(LOCAL, limits=Limits(max_attachment=100)) as service:
        file = File(url=site.url("/x.png"), media_type="image/png", name="x")
        result = await service.create_session("look", attachments=[file])
        assert result.text == file.url
        (told,) = await files_told(service, result.session_id)
        assert (told.url, told.sha256, told.name) == (file.url, None, "x")
        assert why in (told.not_kept or "")
        prompt = (await transcript(service, result.session_id))[0]
        assert isinstance(prompt, UserMessage)
        assert prompt.attachments == (told,)


async def test_a_name_of_a_private_address_is_not_asked(tls: ssl.SSLContext) -> None:
    """With the public web alone, no connection is made to a name that means this machine."""
    async with serve(tls) as site, runtime(ToolsConfig(fetch=True)) as service:
        file = File(url=site.url("/a.png"), media_type="image/png")
        result = await service.create_session("look", attachments=[file])
        (told,) = await files_told(service, result.session_id)
    assert result.text == file.url
    assert "127.0.0.1, which is not a public address" in (told.not_kept or "")
    assert site.asked == []


@pytest.mark.parametrize("tools", [None, ToolsConfig()])
async def test_nothing_is_fetched_if_the_host_has_not_opened_the_web(
    tls: ssl.SSLContext, tools: ToolsConfig | None
) -> None:
    """Without the setting the URL goes to the provider as it is."""
    async with serve(tls) as site, runtime(tools) as service:
        file = File(url=site.url("/a.png"), media_type="image/png")
        result = await service.create_session("look", attachments=[file])
        assert await files_told(service, result.session_id) == [Attachment("image/png", url=file.url)]
    assert result.text == file.url
    assert site.asked == []


async def test_a_session_under_a_key_is_created_once_whatever_the_address_has(
    tls: ssl.SSLContext, tmp_path: Path
) -> None:
    """A call that is sent again under its key finds its session, also if the file has changed or is gone."""
    async with serve(tls) as site, runtime(LOCAL, store=StoreConfig(tmp_path / "store")) as service:
        file, found = File(url=site.url("/a.png"), media_type="image/png"), set[str]()
        for page in (("200 OK", PNG), ("200 OK", PNG + b"more"), ("404 Not Found", b"")):
            site.pages["/a.png"] = page
            result = await service.create_session("look", attachments=[file], idempotency_key="once")
            assert result.text == PNG.hex()
            found.add(result.session_id)
        assert len(found) == 1


async def test_what_is_refused_fetches_nothing(tls: ssl.SSLContext, tmp_path: Path) -> None:
    """A prompt beyond a limit, and one whose answer is known, ask no other server."""
    tenants, store = {"acme": TenantLimits(sessions=1, turns_per_minute=1)}, StoreConfig(tmp_path / "store")
    served = serve(tls, {"/a.png": ("200 OK", PNG)})
    async with served as site, runtime(LOCAL, store=store, tenants=tenants) as service:
        acme, files = service.as_(Principal("acme", "ann")), [File(url=site.url("/a.png"), media_type="image/png")]
        first = await acme.create_session("look", attachments=files, idempotency_key="once")
        assert site.asked == ["/a.png"]
        assert (await acme.create_session("look", attachments=files, idempotency_key="once")).text == first.text
        with pytest.raises(CapacityExceededError):
            await acme.create_session("look", attachments=files)
        with pytest.raises(CapacityExceededError):
            await acme.create_session("look", attachments=files, idempotency_key="twice")
        with pytest.raises(CapacityExceededError):
            await acme.start_turn(first.session_id, "look", attachments=files)
        assert site.asked == ["/a.png"]


async def test_a_prompt_that_is_sent_again_fetches_nothing(tls: ssl.SSLContext, tmp_path: Path) -> None:
    """A prompt under a key is answered from the store, also beyond a limit, and its files are not asked for again."""
    tenants, store = {"acme": TenantLimits(turns_per_minute=1)}, StoreConfig(tmp_path / "store")
    served = serve(tls, {"/a.png": ("200 OK", PNG)})
    async with served as site, runtime(LOCAL, store=store, tenants=tenants) as service:
        acme, files = service.as_(Principal("acme", "ann")), [File(url=site.url("/a.png"), media_type="image/png")]
        session_id = (await acme.create_session(None)).session_id
        send = functools.partial(acme.start_turn, session_id, "look", attachments=files, mode="queue")
        for _ in range(2):
            assert (await send(idempotency_key="once")).text == PNG.hex()
        with pytest.raises(CapacityExceededError):
            await send(idempotency_key="twice")
        assert site.asked == ["/a.png"]


async def test_a_prompt_to_a_busy_session_fetches_nothing(tls: ssl.SSLContext) -> None:
    """A prompt that may not wait is refused at once while a turn runs, and asks no other server."""
    async with serve(tls) as site, runtime(LOCAL, Stuck()) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        file = File(url=site.url("/a.png"), media_type="image/png")
        with pytest.raises(SessionBusyError):
            await service.start_turn(session_id, "look", attachments=[file])
        assert site.asked == []
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_all_files_of_a_prompt_have_one_bound() -> None:
    """A server that hangs, and one whose files fill the bound, cost the prompt its files alone, and a bounded time."""

    async def fetch(url: str, most: int) -> bytes:
        await trio.sleep(60 if url.endswith("hangs") else 1)
        if len(PNG) > most:
            raise ToolError("url: too large")
        return PNG

    began = trio.current_time()
    files = [Blob(Attachment("image/png", url=f"https://x/{name}"), b"") for name in ("a", "b", "c", "hangs", "d")]
    kept = await fetched(files, 100, fetch)
    assert trio.current_time() - began == FETCH_SECONDS
    assert [each.data for each in kept] == [PNG, PNG, b"", b"", b""]
    took = f"the files of the prompt took longer than {FETCH_SECONDS:g} s"
    assert [each.attachment.not_kept for each in kept] == [None, None, "too large", took, took]
