"""Signed tokens: what is let in, as whom, and everything else."""

import base64
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.transport.http.tokens import (
    AUDIENCE,
    ISSUER,
    claims,
    config,
    ec_key,
    key_set,
    public_jwk,
    public_pem,
    rsa_key,
    signed,
)
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.principals import Principal
from warren.transport.access.jwt_config import JwtConfig
from warren.transport.access.jwt_verifier import RARELY, USUALLY, JwtVerifier, RemoteKeys, read_keys
from warren.transport.access.logins import Authenticator, Login, key_of
from warren.transport.access.refusals import RefusedError

URL = "https://issuer.example/keys"


def verifier(folder: Path, keys: bytes | None = None, **settings: Any) -> JwtVerifier:
    """Return a verifier with the first key, or with others."""
    return JwtVerifier(config(folder, **settings), read_keys(key_set(k1="first") if keys is None else keys))


async def found(verifier: JwtVerifier, token: str) -> Login | None:
    """Return the login of a token."""
    return await verifier.verify(token, key_of(token))


def segment(data: object) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()


async def test_a_good_token_is_its_principal(tmp_path: Path) -> None:
    """`sub` is the name, the scopes are those of Warren among the claimed ones; it ends a little after `exp`."""
    end = int(time.time()) + 100
    token = signed(sub="ada", exp=end, scope="session:read openid memory:read node")
    login = await found(verifier(tmp_path), token)
    assert login is not None
    assert login.principal == Principal("default", "ada", frozenset({"session:read", "memory:read"}))
    assert login.expires == end + 10


@pytest.mark.parametrize(
    ("settings", "claimed", "expected"),
    [
        ({"tenant_claim": "org"}, {"org": "acme"}, Principal("acme", "ada")),
        ({"tenant_claim": "app.org"}, {"app": {"org": "acme"}}, Principal("acme", "ada")),
        ({"tenant_claim": "https://x.example/org"}, {"https://x.example/org": "acme"}, Principal("acme", "ada")),
        ({"tenant_claim": "org"}, {}, None),
        ({"tenant_claim": "org"}, {"org": "default"}, None),
        ({"tenant_claim": "org"}, {"org": "no tenant"}, None),
        ({"tenant_claim": "org"}, {"org": ["acme"]}, None),
        ({}, {"sub": " "}, None),
        ({"scope_claim": "roles"}, {"roles": ["session:read", 5]}, Principal(scopes=frozenset({"session:read"}))),
        ({"scope_claim": "roles"}, {"roles": 5}, Principal(scopes=frozenset())),
        ({}, {"scope": None}, Principal(scopes=frozenset())),
        (
            {"scope_claim": "a.roles", "scope_map": ("dev=session:read", "dev=session:write", "ops=metrics:read")},
            {"a": {"roles": ["dev", "session:admin"]}},
            Principal(scopes=frozenset({"session:read", "session:write"})),
        ),
    ],
)
async def test_claims_become_a_principal(
    tmp_path: Path, settings: dict[str, Any], claimed: dict[str, Any], expected: Principal | None
) -> None:
    """As the settings map them; a token that lacks the tenant is of no tenant, and not of the default one."""
    login = await found(verifier(tmp_path, **settings), signed(**claimed))
    if expected is None:
        assert login is None
    else:
        assert login is not None
        assert login.principal == Principal(expected.tenant, "ada", expected.scopes)


def hs256_with_the_public_key() -> str:
    """Return a token whose secret is the public key that everybody may know."""
    body = f"{segment({'alg': 'HS256', 'typ': 'JWT', 'kid': 'k1'})}.{segment(claims())}"
    proof = hmac.digest(public_pem(), body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(proof).rstrip(b'=').decode()}"


def tampered() -> str:
    """Return a token whose claims are others than those that were signed."""
    head, _, proof = signed().split(".")
    return f"{head}.{segment(claims(sub='eve'))}.{proof}"


NOW = int(time.time())
BAD: dict[str, Callable[[], str]] = {
    "no token": lambda: "x",
    "empty": lambda: "",
    "dots": lambda: "..",
    "no JSON": lambda: "e.e.e",
    "deep JSON": lambda: f"{base64.urlsafe_b64encode(b'[' * 12_000).decode()}.e30.e30",
    "a head that is no object": lambda: f"{segment([])}.{segment(claims())}.AA",
    "alg none": lambda: f"{segment({'alg': 'none', 'kid': 'k1'})}.{segment(claims())}.",
    "alg None": lambda: f"{segment({'alg': 'None', 'kid': 'k1'})}.{segment(claims())}.",
    "no alg": lambda: f"{segment({'kid': 'k1'})}.{segment(claims())}.AA",
    "alg of another type": lambda: f"{segment({'alg': ['RS256'], 'kid': 'k1'})}.{segment(claims())}.AA",
    "HS256": lambda: signed("a secret of at least thirty-two bytes", "HS256"),
    "HS256 with the public key": hs256_with_the_public_key,
    "an algorithm that is not accepted": lambda: signed(algorithm="PS512"),
    "an unknown key": lambda: signed(rsa_key("second")),
    "an unknown kid": lambda: signed(headers={"kid": "k9"}),
    "a kid of another type": lambda: f"{segment({'alg': 'RS256', 'kid': 5})}.{segment(claims())}.AA",
    "ES256 for an RSA key": lambda: signed(ec_key(), "ES256"),
    "other claims": tampered,
    "no signature": lambda: signed().rpartition(".")[0] + ".",
    "another audience": lambda: signed(aud="https://other.example"),
    "no audience": lambda: signed(aud=None),
    "another issuer": lambda: signed(iss="https://evil.example"),
    "no issuer": lambda: signed(iss=None),
    "no subject": lambda: signed(sub=None),
    "no end": lambda: signed(exp=None),
    "expired": lambda: signed(exp=NOW - 3_600),
    "an end of another type": lambda: signed(exp="tomorrow"),
    "an end without an end": lambda: signed(exp=float("inf")),
    "not yet valid": lambda: signed(nbf=NOW + 3_600),
    "of the future": lambda: signed(iat=NOW + 3_600),
    "a critical extension": lambda: signed(headers={"kid": "k1", "crit": ["exp"]}),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_tokens_are_refused(tmp_path: Path, name: str) -> None:
    """Each in the same way: nothing says which of its faults was found."""
    with pytest.raises(RefusedError) as caught:
        await Authenticator(verifier=verifier(tmp_path)).authenticate(BAD[name]())
    assert caught.value.status == 401
    assert dict(caught.value.headers) == {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    assert caught.value.error.message == "a valid bearer token is needed"


async def test_the_clocks_may_differ_a_little(tmp_path: Path) -> None:
    """By ten seconds, unless the settings say otherwise."""
    late = signed(exp=int(time.time()) - 5)
    assert await found(verifier(tmp_path), late) is not None
    assert await found(verifier(tmp_path, leeway=0), late) is None


async def test_a_key_is_for_its_algorithm(tmp_path: Path) -> None:
    """A key set may say so, and then the key verifies nothing else."""
    keys = json.dumps({"keys": [{**public_jwk("k1"), "alg": "RS512"}]}).encode()
    each = verifier(tmp_path, keys, algorithms=("RS256", "RS512"))
    assert await found(each, signed()) is None
    assert await found(each, signed(algorithm="RS512")) is not None


async def test_a_public_key_in_a_file_is_for_all_tokens(tmp_path: Path) -> None:
    """It has no name, so any that a token gives is good."""
    each = verifier(tmp_path, public_pem())
    assert await found(each, signed()) is not None
    assert await found(each, signed(headers={})) is not None
    assert await found(each, signed(rsa_key("second"))) is None


async def test_a_token_without_a_key_name(tmp_path: Path) -> None:
    """The only key is meant; of two neither is."""
    assert await found(verifier(tmp_path), signed(headers={})) is not None
    assert await found(verifier(tmp_path, key_set(k1="first", k2="second")), signed(headers={})) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"{}", b'{"keys": []}', b'{"keys": 5}', b'{"keys": [5]}', b"-----BEGIN x", b"[" * 100_000],
)
def test_bad_keys_are_refused(data: bytes) -> None:
    """The error names the setting."""
    with pytest.raises(InvalidParamsError) as caught:
        read_keys(data)
    assert caught.value.path == "$.jwt.keys"


def test_secrets_in_a_key_set_are_passed_over() -> None:
    """A shared secret is no public key, and a key for encryption signs nothing."""
    secret = {"kty": "oct", "k": "AAAA", "kid": "s"}
    data = {"keys": [secret, {**public_jwk("e"), "use": "enc"}, {"kty": "?"}, public_jwk("k1")]}
    assert [key.kid for key in read_keys(json.dumps(data).encode())] == ["k1"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"issuer": ""}, "issuer"),
        ({"audience": ()}, "audience"),
        ({"keys": ""}, "keys"),
        ({"keys": "http://issuer.example/keys"}, "keys"),
        ({"algorithms": ()}, "algorithms"),
        ({"algorithms": ("none",)}, "algorithms"),
        ({"algorithms": ("HS256",)}, "algorithms"),
        ({"scope_map": ("users",)}, "scope_map"),
        ({"scope_map": ("nodes=node",)}, "scope_map"),
        ({"leeway": -1.0}, "leeway"),
        ({"leeway": 61.0}, "leeway"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], field: str) -> None:
    """A setting that would let in more than was meant is refused when it is made."""
    good: dict[str, Any] = {"issuer": ISSUER, "audience": (AUDIENCE,), "keys": URL}
    with pytest.raises(FieldValueError) as caught:
        JwtConfig(**good | settings)
    assert caught.value.field == field


class Issuer:
    """An issuer: its keys, and how often they were asked for."""

    def __init__(self, keys: bytes) -> None:
        self.keys = keys
        self.status = 200
        self.asked = 0

    async def answer(self, _request: httpx.Request) -> httpx.Response:
        """Answer as the issuer."""
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return httpx.Response(self.status, content=self.keys)


def remote(folder: Path, issuer: Issuer) -> tuple[JwtVerifier, RemoteKeys]:
    """Return a verifier whose keys are an issuer's."""
    each = JwtVerifier(config(folder))
    keys = RemoteKeys(URL, httpx.AsyncClient(transport=httpx.MockTransport(issuer.answer)), each.use)
    each.refresh = keys.refresh
    return each, keys


@pytest.mark.virtual_time
async def test_a_new_key_is_fetched_when_a_token_names_it(tmp_path: Path) -> None:
    """At most once a minute, however many tokens name unknown keys, and by however many clients at once."""
    issuer = Issuer(key_set(k1="first"))
    each, _ = remote(tmp_path, issuer)
    assert await found(each, signed()) is not None
    assert issuer.asked == 1
    issuer.keys = key_set(k2="second")
    new = signed(rsa_key("second"), headers={"kid": "k2"})
    for _ in range(10):
        assert await found(each, new) is None
    assert issuer.asked == 1
    await trio.sleep(RARELY)
    logins = list[Login | None]()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(lambda: _collect(each, new, logins))
    assert issuer.asked == 2
    assert all(logins)
    assert len(logins) == 10


async def _collect(each: JwtVerifier, token: str, logins: list[Login | None]) -> None:
    logins.append(await found(each, token))


@pytest.mark.virtual_time
async def test_a_key_that_is_withdrawn_ends_its_logins(tmp_path: Path) -> None:
    """Within ten minutes, though no token names an unknown key."""
    issuer = Issuer(key_set(k1="first"))
    each, keys = remote(tmp_path, issuer)
    authenticator = Authenticator(verifier=each)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keys.follow)
        login = await authenticator.authenticate(signed())
        issuer.keys = key_set(k2="second")
        await trio.sleep(USUALLY - 1)
        assert authenticator.holds(login)
        await trio.sleep(2)
        assert not authenticator.holds(login)
        with pytest.raises(RefusedError):
            await authenticator.authenticate(signed())
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
@pytest.mark.parametrize("fault", ["status", "content", "size"])
async def test_an_issuer_that_fails_costs_no_login(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The keys stay, and the problem is told until the issuer answers again."""
    issuer = Issuer(key_set(k1="first"))
    each, keys = remote(tmp_path, issuer)
    login = await found(each, signed())
    assert login is not None
    if fault == "status":
        issuer.status = 500
    else:
        issuer.keys = b"no keys" if fault == "content" else b" " * (1024 * 1024 + 1)
    await trio.sleep(RARELY)
    await keys.refresh()
    assert keys.problem is not None
    assert URL in caplog.text
    assert each.trusts(login.signer or "")
    issuer.status, issuer.keys = 200, key_set(k1="first")
    await trio.sleep(RARELY)
    await keys.refresh()
    assert keys.problem is None
