"""nginx and haproxy of the system in front of a gateway, with the configurations of the page and with their defaults.

A machine without one of them leaves its tests out, and the report of the run says so.
"""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.docs.snippets import DOCS, blocks
from tests.transport.clients import HOST

Program = Literal["nginx", "haproxy"]
PROGRAMS: Final[tuple[Program, ...]] = ("nginx", "haproxy")
PREFIX: Final = "/warren"
"""The path of the configurations on the page."""
PATHS: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin"
DEBIAN: Final = Path("/etc/haproxy/haproxy.cfg")
TIMEOUTS: Final = "    timeout connect 5000\n    timeout client 50000\n    timeout server 50000\n"
"""The timeouts of Debian's file, for machines that lack it."""
NGINX: Final = """\
daemon off;
master_process off;
pid nginx.pid;
error_log stderr error;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{servers}
}}
"""
BARE_NGINX: Final = "server { listen 443 ssl; location / { proxy_pass http://127.0.0.1:8420; } }"
BARE_HAPROXY: Final = "frontend f\n    bind :443 ssl\n    default_backend b\nbackend b\n    server s 127.0.0.1:8420\n"


def needs(program: Program) -> str:
    """Return the path of a program, or leave the test out."""
    found = shutil.which(program, path=PATHS)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install {program}): its tests are left out")
    return found


def documented(program: Program) -> str:
    """Return the configuration on the page."""
    (found,) = [each.text for each in blocks(DOCS / "proxies.md") if each.language == program]
    return found


def bare(program: Program) -> str:
    """Return a configuration with an address and nothing else."""
    return BARE_NGINX if program == "nginx" else BARE_HAPROXY


@asynccontextmanager
async def proxy(program: Program, config: str, gateway: int, **options: Any) -> AsyncIterator[int]:
    """Run a proxy as `started` does, for an asynchronous body."""
    with started(program, config, gateway, **options) as port:
        yield port


@contextmanager
def started(
    program: Program,
    config: str,
    gateway: int,
    *,
    change: Callable[[str], str] = lambda config: config,
    port: int = 0,
    certificate: Path | None = None,
) -> Iterator[int]:
    """Run a proxy in front of a port of this machine for a body; yields its own port.

    Args:
        program: the program.
        config: its configuration as the page shows it: with TLS on port 443 in front of port 8420. It gets ports of its
            own.
        gateway: the port of the gateway.
        change: changes the whole configuration, as its timeouts.
        port: the port of the proxy; 0 picks one.
        certificate: the file with its key and its certificate; without one it speaks no TLS.
    """
    path, port = needs(program), port or _free()
    config = config.replace("127.0.0.1:8420", f"{HOST}:{gateway}")
    with tempfile.TemporaryDirectory(prefix="warren-proxy-") as folder:
        file = Path(folder) / "proxy.conf"
        if program == "nginx":
            told = "" if certificate is None else rf"\1 {certificate};\n"
            config = re.sub(r"^( *ssl_\w+) .*;\n", told, config, flags=re.MULTILINE)
            config = config.replace("listen 443 ssl", f"listen {HOST}:{port}{' ssl' * (certificate is not None)}")
            config = NGINX.format(servers=config)
            command = [path, "-p", folder, "-e", "stderr", "-c", str(file)]
        else:
            told = "" if certificate is None else f" ssl crt {certificate}"
            config = _defaults() + re.sub(r"bind :443 ssl.*", f"bind {HOST}:{port}{told}", config)
            command = [path, "-db", "-f", str(file)]
        file.write_text(change(config), encoding="utf-8")
        process = subprocess.Popen(command)
        try:
            _wait_until_open(port, process)
            yield port
        finally:
            process.kill()
            process.wait()


def _free() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def _defaults() -> str:
    """Return the section `defaults` of Debian's file, without its logs."""
    text = DEBIAN.read_text(encoding="utf-8") if DEBIAN.exists() else ""
    found = re.search(r"^defaults\n((?:[ \t]+.*\n)+)", text, re.MULTILINE)
    lines = (TIMEOUTS if found is None else found[1]).splitlines(keepends=True)
    return "defaults\n    mode http\n" + "".join(each for each in lines if each.split()[0] == "timeout")


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait for some milliseconds, as a rule; the caller's event loop stands still meanwhile."""
    for _ in range(500):
        assert process.poll() is None, "the proxy does not start"
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
            return
        time.sleep(0.02)
    raise AssertionError("the proxy does not listen")
