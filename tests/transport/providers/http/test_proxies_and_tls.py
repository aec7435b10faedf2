"""The way to a server: certificates, TLS sessions that are resumed, and proxies of the environment."""

import ssl
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
import trustme

from tests.transport.providers.calls import GPT, request
from tests.transport.providers.http.servers import ask, proxying, saying, serving
from warren.actors.io import proxies
from warren.base.errors import ProviderError
from warren.transport.providers import open_providers
from warren.transport.providers.http.client import new_client

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def secured(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Return the TLS of a server with this name, whose certificates are trusted by the environment."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(path / "authority.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_and_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE says whom to trust; the second connection to a server resumes the session of the first."""
    tls = secured("localhost", tmp_path, monkeypatch)
    async with (
        serving(saying(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"), tls=tls) as server,
        new_client() as client,
    ):
        assert [await ask(client, server.url) for _ in range(3)] == [b"hi"] * 3
    assert server.reused == [False, True, True]


async def test_tls_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests one after another share a connection with TLS, although its tickets come late."""
    tls = secured("localhost", tmp_path, monkeypatch)
    async with serving(tls=tls) as server, new_client() as client:
        assert [await ask(client, server.url) for _ in range(3)] == [b"hello"] * 3
    assert server.opened == 1


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_a_refusal_before_the_end_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, secure: bool
) -> None:
    """A server that does not want to read a large prompt, and hangs up, has its answer read."""
    tls = secured("localhost", tmp_path, monkeypatch)

    async def refuse(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, tls, server_side=True, https_compatible=True) if secure else plain
        try:
            await stream.receive_some(1024)
            await stream.send_all(b"HTTP/1.1 413 Too much\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await trio.sleep(0.1)
        finally:
            plain.socket.close()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        url = f"http{'s' if secure else ''}://localhost:{port}/v1"
        async with open_providers({"OPENAI_BASE_URL": url}) as providers:
            with pytest.raises(ProviderError, match="413") as caught:
                await providers.resolve(GPT, None).provider.complete(request(GPT, "x" * 8_000_000), lambda _: None)
        nursery.cancel_scope.cancel()
    assert (caught.value.cause, caught.value.retryable) == ("too_large", False)


@pytest.mark.parametrize("url", ["http://a..b/v1", f"http://{'a' * 70}.example/v1"])
async def test_a_name_that_no_server_can_have(url: str) -> None:
    """It is a failure of the provider, like any name that leads nowhere."""
    async with open_providers({"OPENAI_BASE_URL": url}) as providers:
        with pytest.raises(ProviderError, match="cannot be reached"):
            await providers.resolve(GPT, None).provider.complete(request(GPT), lambda _: None)


async def test_a_certificate_for_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is wrong with the certificate, and a model's call is not tried again."""
    tls = secured("elsewhere.example", tmp_path, monkeypatch)
    async with serving(tls=tls) as server:
        async with new_client() as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(client, server.url)
        async with open_providers({"OPENAI_BASE_URL": server.url}) as providers:
            with pytest.raises(ProviderError) as caught:
                await providers.resolve(GPT, None).provider.complete(request(GPT), lambda _: None)
    assert (caught.value.cause, caught.value.retryable) == ("certificate", False)
    assert server.arrived == []


async def test_a_proxy_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment gets whole addresses, and the name and the password of its own address."""
    async with proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:secret@"))
        async with new_client() as client:
            for _ in range(2):
                assert await ask(client, "http://far.example/a?b=c") == b"hello"
    assert [each.line for each in proxy.arrived] == ["POST http://far.example/a?b=c HTTP/1.1"] * 2
    assert proxy.arrived[0].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert proxy.arrived[0].headers["host"] == "far.example"
    assert proxy.opened == 1


async def test_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of NO_PROXY, and this machine, are called directly."""
    async with serving() as server, proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.2")
        async with new_client() as client:
            assert await ask(client, server.url) == b"hello"
            with pytest.raises(httpx.ConnectError):
                await ask(client, server.url.replace("127.0.0.1", "127.0.0.2"))
    assert len(server.arrived) == 1
    assert proxy.opened == 0


@pytest.mark.parametrize("address", ["ftp://me:secret@far.example", "http://[me:secret", "http://:x:y:secret"])
async def test_a_proxy_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, and not the password in it; the servers of NO_PROXY are reached all the same."""
    monkeypatch.setenv("HTTP_PROXY", address)
    async with serving() as server, new_client() as client:
        assert await ask(client, server.url) == b"hello"
        with pytest.raises(httpx.ProxyError, match="HTTP_PROXY") as caught:
            await ask(client, "http://far.example/")
    assert "secret" not in str(caught.value)


async def test_a_proxy_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may have TLS of its own, around the TLS of the server behind it."""
    tls = secured("localhost", tmp_path, monkeypatch)
    async with serving(tls=tls) as server, proxying(tls=tls) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        with monkeypatch.context() as patched:
            patched.setattr(proxies, "LOCAL", ())
            client = new_client()
        async with client:
            for _ in range(2):
                assert await ask(client, server.url) == b"hello"
            assert await ask(client, "http://far.example/") == b"hello"
    assert [each.line.split(" ")[0] for each in proxy.arrived] == ["CONNECT", "POST"]
    assert len(server.arrived) == 2


async def test_a_socks_proxy_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is missing."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    async with new_client() as client:
        with pytest.raises(httpx.ProxyError, match="socksio"):
            await ask(client, "http://far.example/")


async def test_a_tunnel_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with TLS is reached through a tunnel, which is used again; its name is checked at its far end."""
    tls = secured("far.example", tmp_path, monkeypatch)
    async with serving(tls=tls) as server, proxying() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:secret@"))
        async with new_client() as client:
            for _ in range(2):
                assert await ask(client, server.url.replace("localhost", "far.example")) == b"hello"
    (connected,) = proxy.arrived
    assert connected.line.startswith("CONNECT far.example:")
    assert connected.headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    assert [each.line for each in server.arrived] == ["POST / HTTP/1.1"] * 2
    assert "proxy-authorization" not in server.arrived[0].headers


async def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what the proxy said."""
    async with proxying(refuse=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with new_client() as client:
            with pytest.raises(httpx.ProxyError, match="407 Who are you"):
                await ask(client, "https://far.example/")
        await proxy.ended(0)
