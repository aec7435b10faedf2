"""The sockets by which the workers of one gateway are reached by other nodes."""

import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from warren.base.errors import InvalidParamsError
from warren.settings.config import NodeConfig, StoreConfig
from warren.transport.access.config import GatewayConfig
from warren.transport.gateway.link import FOLDER, address_of, check_address, open_link
from warren.transport.http import sockets

NODE = NodeConfig()


async def test_a_store_in_files_gets_a_socket_for_its_user_alone(tmp_path: Path) -> None:
    """Others of the machine do not reach it, and it is gone afterwards."""
    with open_link(StoreConfig(tmp_path), GatewayConfig(), NODE) as link:
        path = trio.Path(link.url.removeprefix("unix:"))
        assert stat.S_IMODE((await path.parent.stat()).st_mode) == 0o700
        assert stat.S_IMODE((await path.stat()).st_mode) & 0o077 == 0
        async with await trio.open_unix_socket(str(path)) as client, await link.listener.accept() as server:
            await server.send_all(b"here")
            assert await client.receive_some() == b"here"
    assert not await path.exists()


def test_sockets_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of living ones stay, also of one that is about to listen."""
    monkeypatch.setattr(sockets, "YOUNG", 3_600.0)
    with open_link(StoreConfig(tmp_path), GatewayConfig(), NODE) as living:
        dead, new = (tmp_path / FOLDER / name for name in ("1.sock", "3.sock"))
        for path in (dead, new):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
        os.utime(dead, (0, 0))
        Path(living.url.removeprefix("unix:")).rename(alive := tmp_path / FOLDER / "2.sock")
        with open_link(StoreConfig(tmp_path), GatewayConfig(), NODE):
            assert alive.exists()
            assert new.exists()
            assert not dead.exists()


def test_a_path_that_no_system_takes_gives_a_port(tmp_path: Path) -> None:
    """A folder may lie deeper than the name of a Unix socket can be long."""
    with open_link(StoreConfig(tmp_path / ("deep" * 40)), GatewayConfig(), NODE) as link:
        port = link.listener.socket.getsockname()[1]
        assert link.url == f"ws://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("host", "node", "address"),
    [
        ("127.0.0.1", NODE, "ws://127.0.0.1:1"),
        ("::1", NODE, "ws://[::1]:1"),
        ("0.0.0.0", NODE, f"ws://{socket.gethostname()}:1"),  # noqa: S104 - nothing is bound
        ("0.0.0.0", NodeConfig(address="wss://warren.example.com"), "wss://warren.example.com"),  # noqa: S104 - as above
    ],
)
def test_the_address_is_one_that_leads_here(host: str, node: NodeConfig, address: str) -> None:
    """A wildcard is no address, and what the operator says wins."""
    assert address_of(GatewayConfig(host=host), 1, node) == address


def test_a_worker_has_its_own_port_at_the_address_of_the_operator() -> None:
    """The other machines reach the host of the address, and each worker has another port there."""
    with open_link(None, GatewayConfig(), NodeConfig(address="ws://10.0.0.5:8420")) as link:
        assert link.url == f"ws://10.0.0.5:{link.listener.socket.getsockname()[1]}"


@pytest.mark.parametrize(
    "address", ["10.0.0.5:8420", "ftp://host", "ws://", "ws://host:port", "ws://host:0", "unix:/x"]
)
def test_a_bad_address_is_refused_by_its_name(address: str) -> None:
    """The option is in the error."""
    with pytest.raises(InvalidParamsError) as refused:
        check_address(address)
    assert refused.value.details["path"] == "$.node_address"
    assert os.linesep not in str(refused.value)
