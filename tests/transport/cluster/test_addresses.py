"""The addresses at which nodes call each other: over TLS, and over a Unix socket."""

import ssl
from pathlib import Path

import pytest
import trio
import trustme

from tests.transport.client.cable import cable
from tests.transport.cluster.nodes import node
from warren.base.errors import LeasedError
from warren.settings.config import Config, NodeConfig, StoreConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.embed import open_supervisor
from warren.transport.gateway.gateway import serve_gateway
from warren.transport.gateway.link import open_link


@pytest.mark.parametrize("name", ["localhost", "other.example"])
@pytest.mark.parametrize("known", [True, False])
async def test_nodes_call_each_other_over_tls(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    *,
    known: bool,
) -> None:
    """Only with a certificate that they trust, for the name of the address; if not, the log says what is wrong."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    store = StoreConfig(tmp_path / "store", projections=False, lease=0.6)
    async with cable(0, context) as wire:
        address = wire.url.replace("ws://127.0.0.1", "wss://localhost")
        async with node(store, "anna", address=address) as anna, node(store, "berta") as berta:
            wire.target = anna.port
            session_id = (await anna.service.create_session("one")).session_id
            if known and name == "localhost":
                assert (await berta.service.start_turn(session_id, "two")).text == "two"
                return
            with pytest.raises(LeasedError):
                await berta.service.start_turn(session_id, "two")
            assert "node anna cannot be called: " in caplog.text
            assert "its certificate cannot be verified: " in caplog.text
            assert (await anna.service.read(session_id)).state.message_count == 2


async def test_nodes_call_each_other_over_a_unix_socket(tmp_path: Path) -> None:
    """As the workers of one command do; the socket goes with its node."""
    store = StoreConfig(tmp_path / "store", projections=False)
    gateway = GatewayConfig(port=0, close_timeout=0.3)
    with open_link(store, gateway, NodeConfig("anna")) as link:
        assert link.url.startswith("unix:")
        config = Config(store=store, node=NodeConfig("anna", link.url))
        async with open_supervisor(config, environ={}) as anna, trio.open_nursery() as nursery:
            await nursery.start(serve_gateway, anna, gateway, [link.listener])
            async with node(store, "berta") as berta:
                session_id = (await anna.create_session("one")).session_id
                assert (await berta.service.start_turn(session_id, "two")).text == "two"
                assert await berta.holder(session_id) == "anna"
            nursery.cancel_scope.cancel()
    assert not list((tmp_path / "store" / "nodes").iterdir())
