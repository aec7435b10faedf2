"""What does a token cost a call? The time of its login, beside that of a server without tokens.

The login of a request is asked for from its header, and then the host of its principal, as the gateway does. The kinds
take turns, several rounds; the figure of a kind is its fastest round, which other programs on the machine disturb
least. A token of a list is one of 10,000. A JWT is verified once, and found again after that.
"""

import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import jwt
import trio
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from benchmarks.report import Goal, report
from warren.base.principals import Principal
from warren.transport.access.auth import AccessPolicy
from warren.transport.access.jwt_config import JwtConfig
from warren.transport.access.jwt_verifier import JwtVerifier, SigningKey
from warren.transport.access.logins import Authenticator, Login, key_of

CALLS: Final = 20_000
VERIFIED: Final = 500
ROUNDS: Final = 9
TOKENS: Final = 10_000
GOAL_TOKEN: Final = 2.0
GOAL_JWT: Final = 5.0
"""Microseconds that a call with a token, and with a JWT that is known, may take beyond a call without any."""
ISSUER: Final = "https://issuer.example"


def _signed(key: Any, algorithm: str, number: int = 0) -> str:
    claims = {"iss": ISSUER, "aud": "warren", "sub": f"ada-{number}", "exp": int(time.time()) + 3_600}
    return jwt.encode(claims | {"scope": "session:read session:write"}, key, algorithm)


def _verifier(key: Any, algorithm: str, folder: Path) -> JwtVerifier:
    config = JwtConfig(issuer=ISSUER, audience=("warren",), keys=str(folder / "k"), algorithms=(algorithm,))
    return JwtVerifier(config, (SigningKey(None, None, key.public_key(), "k"),))


def _policy(authenticator: Authenticator) -> AccessPolicy:
    return AccessPolicy(authenticator, (), "127.0.0.1")


def _calls(policy: AccessPolicy, tokens: list[str]) -> Callable[[], Awaitable[float]]:
    """Return a round: the microseconds of a call that has one of these tokens, in turn."""
    hosts = lru_cache(1_024)(lambda login: login.principal)
    headers = [[f"Bearer {token}"] for token in tokens] or [[]]
    count = CALLS if len(tokens) < 2 else len(tokens)  # noqa: PLR2004 - one token is asked for again and again

    async def run() -> float:
        begun = time.thread_time()
        for number in range(count):
            hosts(await policy.login(headers[number % len(headers)]))
        return (time.thread_time() - begun) / count * 1e6

    return run


def _fresh(key: Any, algorithm: str, folder: Path) -> Callable[[], Awaitable[float]]:
    """Return a round in which each token is new."""
    tokens = [_signed(key, algorithm, number) for number in range(VERIFIED)]

    async def run() -> float:
        return await _calls(_policy(Authenticator(verifier=_verifier(key, algorithm, folder))), tokens)()

    return run


async def _measure(folder: Path) -> dict[str, float]:
    listed = {key_of(f"t{n}"): Login(Principal(name=f"n{n}"), key_of(f"t{n}")) for n in range(TOKENS)}
    rsa_key, ec_key = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    known = _policy(Authenticator({}, _verifier(rsa_key, "RS256", folder)))
    kinds = {
        "without tokens": _calls(_policy(Authenticator()), []),
        "token of a list": _calls(_policy(Authenticator(listed)), ["t5000"]),
        "JWT, known": _calls(known, [_signed(rsa_key, "RS256")]),
        "JWT, RS256, new": _fresh(rsa_key, "RS256", folder),
        "JWT, ES256, new": _fresh(ec_key, "ES256", folder),
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(ROUNDS):
        for name, run in kinds.items():
            best[name] = min(best[name], await run())
    return best


def main() -> None:
    """Print the microseconds of a login of each kind."""
    with TemporaryDirectory() as folder:
        found = trio.run(_measure, Path(folder))
    more = {name: us - found["without tokens"] for name, us in found.items()}
    goals = [
        Goal("us of a token, beyond a call without any", more["token of a list"], "<=", GOAL_TOKEN),
        Goal("us of a JWT that is known, beyond a call without any", more["JWT, known"], "<=", GOAL_JWT),
    ]
    report("What does a token cost a call?", {name: {"us": round(us, 2)} for name, us in found.items()}, goals)


if __name__ == "__main__":
    main()
