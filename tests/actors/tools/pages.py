"""Pages of a web server, its names and its certificate, and the sockets that are open."""

import datetime as dt
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.transport.providers.byte_server import Request

Handler = Callable[[Request, trio.SocketStream], Awaitable[None]]


def page(body: bytes, kind: str = "text/plain", status: str = "200 OK", **headers: str) -> Handler:
    """Return a handler that answers with a page."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{named}\r\n"

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(head.encode() + body)

    return handle


def open_sockets() -> int:
    """Count the stream sockets of this process to an IP address, by asking the kernel."""
    return sum(is_connected(fd) for fd in range(256))


def is_connected(fd: int) -> bool:
    """Return whether a descriptor is a connected socket of IP."""
    try:
        with socket.socket(fileno=fd) as found:
            try:
                return found.family in (socket.AF_INET, socket.AF_INET6) and bool(found.getpeername())
            finally:
                found.detach()
    except OSError:
        return False


class Names(trio.abc.HostnameResolver):
    """Names that mean what the test says, look-up for look-up; the last meaning stays."""

    def __init__(self, *meanings: str) -> None:
        self.meanings = list(meanings)
        self.asked: list[str] = []

    async def getaddrinfo(self, host: bytes | None, port: Any, *_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append((host or b"").decode())
        meaning = self.meanings.pop(0) if len(self.meanings) > 1 else self.meanings[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port or 0)) for each in meaning.split()]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        await trio.lowlevel.checkpoint()
        return str(sockaddr[0]), str(flags)


def certificate(name: str) -> tuple[ssl.SSLContext, str]:
    """Return the TLS settings of a server of that name, and its certificate, which clients have to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    made = builder.sign(key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    _load(server, pem + secret)
    return server, pem.decode()


def _load(server: ssl.SSLContext, pem: bytes) -> None:
    """Give a server its certificate, which has to come from a file."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        server.load_cert_chain(file.name)
