"""Lists of tokens, and the logins that hold."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.transport.http.tokens import listed
from warren.base.errors import InvalidParamsError
from warren.base.principals import LOCAL, OWN_SCOPES, Principal
from warren.transport.access.logins import Authenticator, Login, key_of, single
from warren.transport.access.refusals import RefusedError
from warren.transport.access.token_list import (
    Token,
    hash_of,
    new_token,
    read_logins,
    read_tokens,
    with_token,
    without_tokens,
)

HASH = f"sha256:{'0' * 64}"
GOOD = f'[[token]]\nhash = "{HASH}"\ntenant = "acme"\nname = "ci"\nscopes = ["session:read"]\n'


async def test_without_tokens_all_are_the_local_user() -> None:
    """A runtime on one machine needs none; one that is sent does no harm."""
    authenticator = Authenticator()
    assert [(await authenticator.authenticate(token)).principal for token in (None, "any")] == [LOCAL, LOCAL]


async def test_one_word_is_one_principal() -> None:
    """The one token has all rights within the default tenant, and none in others."""
    login = await Authenticator(read_logins(b" word\n")).authenticate("word")
    assert login.principal == Principal("default", "token", OWN_SCOPES)


async def test_a_token_of_a_file_is_its_principal(tmp_path: Path) -> None:
    """Tenant, name and scopes are those of its table."""
    path = tmp_path / "tokens.toml"
    token = listed(path, tenant="acme", name="reader", scopes=("session:read",))
    authenticator = Authenticator(read_logins(path.read_bytes()))
    found = (await authenticator.authenticate(token)).principal
    assert found == Principal("acme", "reader", frozenset({"session:read"}))
    assert token not in path.read_text()


@pytest.mark.parametrize("token", [None, "", "other", "wrn_", "x" * 10_000])
async def test_other_tokens_are_refused_alike(token: str | None) -> None:
    """The refusal tells that a token was bad, and not why."""
    with pytest.raises(RefusedError) as caught:
        await Authenticator(single("right")).authenticate(token)
    expected = "Bearer" if token is None else 'Bearer error="invalid_token"'
    assert (caught.value.status, dict(caught.value.headers)) == (401, {"WWW-Authenticate": expected})
    assert "right" not in str(caught.value.error.body())


async def test_a_token_ends_when_it_expires() -> None:
    """From then on it is as good as unknown, for new clients and for those that are there."""
    now = 1_000.0
    login = Login(Principal(), key_of("t"), expires=1_001.0)
    authenticator = Authenticator({login.key: login}, clock=lambda: now)
    assert authenticator.holds(await authenticator.authenticate("t"))
    now = 1_001.0
    assert not authenticator.holds(login)
    with pytest.raises(RefusedError):
        await authenticator.authenticate("t")


async def test_what_ends_a_login() -> None:
    """Revoking the token, and changing its rights; a new list with the same token does not."""
    before = Token(hash=HASH, tenant="acme", name="ci", scopes=("session:read",))
    authenticator = Authenticator({before.login().key: before.login()})
    login = before.login()
    assert authenticator.holds(login)
    after = Token(hash=HASH, tenant="acme", name="ci", scopes=("session:write",))
    authenticator.tokens = {login.key: after.login()}
    assert not authenticator.holds(login)
    authenticator.tokens = {}
    assert not authenticator.holds(login)


def test_an_authenticator_does_not_show_its_tokens() -> None:
    """Not even the hash of a word that may be guessed."""
    assert key_of("word").hex()[:8] not in repr(Authenticator(single("word")))
    assert repr(key_of("word")) not in repr([*single("word").values()])


@pytest.mark.parametrize(
    ("written", "path", "problem"),
    [
        (b"", "$.token_file", "is empty"),
        (b" \n", "$.token_file", "is empty"),
        (b"two words", "$.token_file", "line 1"),
        (b"[[token]]\nhash = \n", "$.token_file", "line 2"),
        (b"\xff", "$.token_file", "cannot be read"),
        (b"[[token]]", "$.token_file.token[0].hash", "is required"),
        (GOOD.replace("acme", "a b").encode(), "$.token_file.token[0].tenant", "1 to 64"),
        (GOOD.replace('"ci"', '" "').encode(), "$.token_file.token[0].name", "must not be empty"),
        (GOOD.replace('"ci"', "1").encode(), "$.token_file.token[0].name", "must be a string"),
        (GOOD.replace("session:read", "session:own").encode(), "$.token_file.token[0].scopes[0]", "must be one of"),
        (GOOD.replace("session:read", "node").encode(), "$.token_file.token[0].scopes[0]", "must be one of"),
        (GOOD.replace(HASH, "sha256:00").encode(), "$.token_file.token[0].hash", "64 hexadecimal"),
        (f"{GOOD}expires = 2027-01-01T00:00:00\n".encode(), "$.token_file.token[0].expires", "time zone"),
        (f"{GOOD}expires = 5\n".encode(), "$.token_file.token[0].expires", "must be"),
        (f"{GOOD}colour = 1\n".encode(), "$.token_file.token[0].colour", "not a known field"),
        (f"{GOOD}[tenant.acme]\nmax_sessions = 1\n".encode(), "$.token_file.tenant", "not a known field"),
        (f"{GOOD}{GOOD}".encode(), "$.token_file.token[1].hash", "that of token[0]"),
        (b"token = 1", "$.token_file.token", "must be"),
    ],
)
def test_a_bad_file_is_refused(written: bytes, path: str, problem: str) -> None:
    """The error has the line or the field, and what is wrong there."""
    with pytest.raises(InvalidParamsError, match=problem.replace("[", r"\[")) as caught:
        read_logins(written)
    assert caught.value.path == path


def test_a_file_without_tokens_lets_nobody_in() -> None:
    """Revoking the last token does not open the door."""
    token = new_token()
    made = Token(hash=hash_of(token), tenant="acme", name="ci", scopes=("session:read",))
    left = without_tokens(with_token(b"", made), [made.hash])
    assert read_logins(left) == {}
    assert not Authenticator(read_logins(left)).is_open


@pytest.mark.parametrize("name", ["ci", 'quo"te', "back\\slash", "líne", "tab\tand\nline", "\x7f", "\U0001f600"])
def test_a_token_is_read_as_it_was_written(name: str) -> None:
    """Whatever its name; the end has whole seconds, in any time zone."""
    end = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = Token(hash=HASH, tenant="acme", name=name, scopes=("session:read", "memory:read"), expires=end)
    assert read_tokens(with_token(b"", made)) == (made,)


def test_a_change_keeps_what_people_wrote() -> None:
    """Comments, order and blanks of the other tokens stay."""
    others = [Token(hash=f"sha256:{n:064x}", tenant="acme", name=f"n{n}", scopes=()) for n in range(3)]
    data = b"# ours\n"
    for each in others:
        data = with_token(data, each)
    data = data.replace(b'name = "n1"', b'name = "n1"  # the second')
    left = without_tokens(data, [others[0].hash])
    assert read_tokens(left) == (others[1], others[2])
    assert b"# ours" in left
    assert b"# the second" in left


def test_a_file_that_only_a_person_can_change() -> None:
    """Nothing is written that says something else than it should."""
    inline = f'token = [{{hash = "{HASH}", tenant = "a", name = "b", scopes = []}}]\n'.encode()
    with pytest.raises(InvalidParamsError, match="only a person"):
        without_tokens(inline, [HASH])


def test_new_tokens_are_long_and_never_the_same() -> None:
    """They have 256 random bits, in characters that a browser can send."""
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(len(token) == len("wrn_") + 43 and token.replace("_", "").replace("-", "").isalnum() for token in made)


async def test_verified_logins_are_asked_for_once() -> None:
    """A second request with the token costs a look-up, until its key is no longer trusted."""
    asked, trusted = list[str](), {"k"}

    class Verifies:
        async def verify(self, token: str, key: bytes) -> Login | None:
            asked.append(token)
            return Login(Principal(name=token), key, None, "k") if token != "bad" else None  # noqa: S105

        def trusts(self, signer: str) -> bool:
            return signer in trusted

    authenticator = Authenticator(verifier=Verifies())
    first = await authenticator.authenticate("ada")
    assert await authenticator.authenticate("ada") is first
    assert asked == ["ada"]
    trusted.clear()
    assert not authenticator.holds(first)
    trusted.add("k")
    for _ in range(2):
        with pytest.raises(RefusedError):
            await authenticator.authenticate("bad")
    assert asked == ["ada", "bad", "bad"]


def test_expiry_is_a_moment() -> None:
    """A time zone of the file is kept in mind."""
    data: Any = f"{GOOD}expires = 2027-01-01T02:00:00+02:00\n".encode()
    (login,) = read_logins(data).values()
    assert login.expires == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
