"""TLS to the server as libpq does it, and the password on its way: it is shown nowhere."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trustme

from tests.support.postgres import Server, fill, needs_postgres
from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.serving import LISTENING

PASSWORD = "s3cret-of-app"  # noqa: S105 - of the test
HBA = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"


@attrs.frozen
class Secured:
    """A server that takes encrypted connections alone, from clients with a password.

    Attributes:
        port: its port on 127.0.0.1; its certificate is for `localhost`.
        ca: the certificate of its authority.
        server: itself.
    """

    port: int
    ca: Path
    server: Server

    def url(self, host: str = "localhost", *, ca: Path | None = None, user: str = "app") -> str:
        """Return an address that asks for a checked certificate."""
        return f"postgresql://{user}@{host}:{self.port}/postgres?sslmode=verify-full&sslrootcert={ca or self.ca}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start such a server."""
    needs_postgres()
    authority, folder = trustme.CA(), tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))

    def prepare(data: Path) -> tuple[str, ...]:
        certificate.private_key_pem.write_to_path(str(data / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(data / "cert.pem"))
        (data / "hba").write_text(HBA, encoding="utf-8")
        for name in ("key.pem", "cert.pem", "hba"):
            owner = data.stat()
            shutil.chown(data / name, owner.st_uid, owner.st_gid)
            (data / name).chmod(0o600)
        settings = {
            "ssl": "on",
            "ssl_key_file": data / "key.pem",
            "ssl_cert_file": data / "cert.pem",
            "hba_file": data / "hba",
            "listen_addresses": "127.0.0.1",
        }
        return tuple(part for name, value in settings.items() for part in ("-c", f"{name}={value}"))

    server = Server.make(port=free_port(), more=prepare)
    try:
        server.run("postgres", f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        fill(server, "postgres")
        yield Secured(server.port, folder / "ca.pem", server)
    finally:
        server.remove()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_checked_certificate(cli: Cli, secured: Secured) -> None:
    """Every connection of a process is encrypted."""
    environ = {"PGPASSWORD": PASSWORD, "WARREN_STORE": secured.url()}
    running = cli.start("serve", "--port", "0", env=environ)
    running.read_until(LISTENING)
    query = (
        "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'warren%%'"
    )
    assert secured.server.run("postgres", query) == [(True,)]
    assert cli.run("run", "hello", env=environ).out == "hello\n"


def test_a_certificate_of_another_name_or_authority(cli: Cli, secured: Secured, tmp_path: Path) -> None:
    """The one line of the error says which it is."""
    environ = {"PGPASSWORD": PASSWORD}
    line = one_line(cli.run("run", "hello", "--store", secured.url("127.0.0.1"), env=environ), 1)
    assert 'server certificate for "localhost" does not match host name "127.0.0.1"' in line
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    line = one_line(cli.run("run", "hello", "--store", secured.url(ca=tmp_path / "other.pem"), env=environ), 1)
    assert "certificate verify failed" in line
    line = one_line(cli.run("run", "hello", "--store", secured.url(ca=tmp_path / "none.pem"), env=environ), 1)
    assert "none.pem" in line
    unencrypted = f"postgresql://app@localhost:{secured.port}/postgres?sslmode=disable"
    assert "no encryption" in one_line(cli.run("run", "hello", "--store", unencrypted, env=environ), 1)


def places(secured: Secured, password: str) -> list[dict[str, str]]:
    """Return the environments that hand a password to a command."""
    address = secured.url()
    return [
        {"WARREN_STORE": address.replace("app@", f"app:{password}@")},
        {"WARREN_STORE": f"{address}&password={password}"},
        {"WARREN_STORE": address, "PGPASSWORD": password},
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_password_is_not_shown(cli: Cli, secured: Secured, place: int) -> None:
    """Neither by the error, nor by the log, nor in the list of processes."""
    wrong = "wr0ng-secret"
    environ = places(secured, wrong)[place]
    for command in (("store", "status"), ("serve", "--port", "0", "--verbose")):
        ended = cli.run(*command, env=environ)
        assert ended.code == 1, command
        assert "password authentication failed" in ended.err
        assert wrong not in ended.out + ended.err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_password_is_not_shown_by_a_process_that_has_it(cli: Cli, secured: Secured, place: int) -> None:
    """Its log at its most verbose, its settings, its list of connections and its line in the list of processes."""
    environ = places(secured, PASSWORD)[place]
    running = cli.start("serve", "--port", "0", "--verbose", env=environ)
    out = running.read_until(LISTENING)
    lines = Path(f"/proc/{running.process.pid}/cmdline").read_bytes()
    assert PASSWORD.encode() not in lines
    shown = secured.server.run("postgres", "SELECT string_agg(application_name || query, ' ') FROM pg_stat_activity")
    assert PASSWORD not in shown[0][0]
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'warren%%'"
    assert secured.server.run("postgres", cut)
    assert PASSWORD not in cli.run("run", "hello", env=environ).err
    for output in ("json", "text"):
        settings = cli.run("config", "show", "--output", output, env=environ)
        assert (settings.code, PASSWORD in settings.out + settings.err) == (0, False)
    running.process.terminate()
    ended = running.end()
    assert PASSWORD not in out + ended.out + ended.err
