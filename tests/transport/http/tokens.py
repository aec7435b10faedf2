"""Tokens of all kinds for tests: lists, keys and signed tokens, with one thing wrong at a time."""

import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from warren.base.principals import OWN_SCOPES
from warren.transport.access.jwt_config import JwtConfig
from warren.transport.access.token_list import Token, hash_of, new_token, with_token

ISSUER = "https://issuer.example"
AUDIENCE = "https://warren.example"
SCOPES = tuple(sorted(OWN_SCOPES))


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """Return the RSA key of a name: a test makes each once."""
    del name
    return rsa.generate_private_key(65537, 2048)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    """Return a key for ES256."""
    return ec.generate_private_key(ec.SECP256R1())


def key_set(**keys: str) -> bytes:
    """Return a key set (JWKS): the name of an RSA key by its `kid`."""
    return json.dumps({"keys": [public_jwk(kid, name) for kid, name in keys.items()]}).encode()


def public_jwk(kid: str, name: str = "first") -> dict[str, Any]:
    """Return a public RSA key as a key set has it."""
    found = jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True)
    return {**found, "kid": kid, "use": "sig"}


def public_pem(name: str = "first") -> bytes:
    """Return a public RSA key in PEM."""
    return rsa_key(name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def claims(**changed: Any) -> dict[str, Any]:
    """Return good claims, with some changed; None leaves one out."""
    now = int(time.time())
    good = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "iat": now,
        "exp": now + 600,
        "scope": " ".join(SCOPES),
        "tenant": "default",
    }
    return {name: value for name, value in (good | changed).items() if value is not None}


def signed(key: Any = None, algorithm: str = "RS256", headers: Mapping[str, Any] | None = None, **changed: Any) -> str:
    """Return a signed token."""
    made = {"kid": "k1"} if headers is None else dict(headers)
    return jwt.encode(claims(**changed), rsa_key("first") if key is None else key, algorithm, headers=made)


def config(folder: Path, **settings: Any) -> JwtConfig:
    """Return settings with the first key in a file."""
    path = folder / "keys.json"
    if not path.exists():
        path.write_bytes(key_set(k1="first"))
    return JwtConfig(**{"issuer": ISSUER, "audience": (AUDIENCE,), "keys": str(path), **settings})


def listed(path: Path, **fields: Any) -> str:
    """Add a new token to a file; return it."""
    token = new_token()
    made = Token(**{"hash": hash_of(token), "tenant": "default", "name": "ci", "scopes": SCOPES, **fields})
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(with_token(path.read_bytes() if path.exists() else b"", made))
    unfinished.replace(path)
    return token
