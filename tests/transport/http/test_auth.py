"""Tokens, origins and addresses."""

from pathlib import Path
from typing import Any

import pytest

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.principals import Principal
from warren.transport.access.auth import OWN_ORIGINS, AccessPolicy, is_loopback, origin_allowed
from warren.transport.access.config import GatewayConfig
from warren.transport.access.logins import Authenticator, single
from warren.transport.access.refusals import RefusedError
from warren.transport.access.token_list import read_token


@pytest.mark.parametrize("written", ["abc-123", "abc-123\n", "  abc-123 \r\n"])
def test_a_token_is_read_without_the_space_around_it(tmp_path: Path, written: str) -> None:
    """Editors add a newline; it is no part of the token."""
    file = tmp_path / "token"
    file.write_bytes(written.encode())
    assert read_token(file) == "abc-123"


@pytest.mark.parametrize(
    ("written", "problem"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"two words", "one word"), ("tökén".encode(), "cannot read")],
)
def test_a_bad_token_file_is_refused(tmp_path: Path, written: bytes, problem: str) -> None:
    """An empty file would let in everybody who sends nothing; what no header can carry would let in nobody."""
    file = tmp_path / "token"
    file.write_bytes(written)
    with pytest.raises(InvalidParamsError, match=problem) as caught:
        read_token(file)
    assert caught.value.path == "$.token_file"


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    """The error has the file's name."""
    with pytest.raises(InvalidParamsError, match="nowhere"):
        read_token(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("authorization", "subprotocols", "let_in"),
    [
        (["Bearer right"], [], True),
        (["bearer right"], [], True),
        (["BEARER  right"], [], True),
        ([], ["warren", "bearer.right"], True),
        (["Bearer wrong"], ["bearer.right"], True),
        ([], [], False),
        (["right"], [], False),
        (["Basic right"], [], False),
        (["Bearer "], [], False),
        (["Bearer rightt"], [], False),
        (["Bearer righ"], [], False),
        (["Bearer r\u00efght"], [], False),
        ([], ["right"], False),
        ([], ["bearer.wrong"], False),
        ([], ["Bearer.right"], False),
    ],
)
async def test_the_token_of_a_request(authorization: list[str], subprotocols: list[str], let_in: bool) -> None:  # noqa: FBT001
    """The token is right or not; both ways of sending it count."""
    policy = AccessPolicy(Authenticator(single("right")), (), "localhost")
    if let_in:
        assert (await policy.login(authorization, subprotocols)).principal == Principal("default", "token")
        return
    with pytest.raises(RefusedError) as caught:
        await policy.login(authorization, subprotocols)
    assert caught.value.status == 401


async def test_a_request_with_many_tokens() -> None:
    """Each may cost a signature, so a request has one for each way to send it."""
    policy = AccessPolicy(Authenticator(single("right")), (), "localhost")
    with pytest.raises(RefusedError):
        await policy.login(["Bearer a", "Bearer right"], ["bearer.b"])


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("HTTP://LOCALHOST:3000", True),
        ("http://127.0.0.1:8420", True),
        ("https://good.example", True),
        ("https://ports.example:8443", True),
        ("https://good.example:8443", False),
        ("https://ports.example", False),
        ("https://localhost", True),
        ("https://localhost:8443", True),
        ("http://[::1]:3000", True),
        ("https://[::1]", True),
        ("http://[::2]", False),
        ("ftp://localhost", False),
        ("http://localhost.evil.example", False),
        ("http://localhost:3000.evil.example", False),
        ("http://localhost:", False),
        ("http://localhost:\u00b2", False),
        ("http://evil.example/http://localhost:1", False),
        ("null", False),
        ("", False),
    ],
)
def test_which_pages_may_connect(origin: str, allowed: bool) -> None:  # noqa: FBT001
    """This machine's own pages and those on the list may, and no lookalike."""
    patterns = (*OWN_ORIGINS, "https://good.example", "https://ports.example:8443")
    assert origin_allowed(origin, patterns) is allowed


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - never bound
        ("::", False),
        ("192.168.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_which_addresses_are_this_machines_own(host: str, loopback: bool) -> None:  # noqa: FBT001
    """An address that is not known to be loopback is taken for reachable, and so needs a token."""
    assert is_loopback(host) is loopback
    config = GatewayConfig(host=host)
    if loopback:
        config.check_exposure()
    else:
        with pytest.raises(InvalidParamsError, match="token") as caught:
            config.check_exposure()
        assert caught.value.path == "$.token"
        GatewayConfig(host=host, token="t").check_exposure()  # noqa: S106 - not one of ours


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"port": -1}, "port"),
        ({"port": 65_536}, "port"),
        ({"host": ""}, "host"),
        ({"token": ""}, "token"),
        ({"token": "two words"}, "token"),
        ({"origins": ("example.org",)}, "origins"),
        ({"origins": ("*",)}, "origins"),
        ({"origins": ("https://example.org/path",)}, "origins"),
        ({"max_message_bytes": 0}, "max_message_bytes"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"outbox_events": -1}, "outbox_events"),
        ({"stall_timeout": 0}, "stall_timeout"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], field: str) -> None:
    """A setting out of range is refused when it is made, under its name."""
    with pytest.raises(FieldValueError, match=field) as caught:
        GatewayConfig(**settings)
    assert caught.value.field == field


def test_a_config_does_not_show_its_token() -> None:
    """The logged form of a config has no secret in it."""
    assert "hush" not in repr(GatewayConfig(token="hush"))  # noqa: S106 - not one of ours
