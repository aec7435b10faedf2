"""Signed tokens (JWT): the keys of their issuer, and the principals that they claim."""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any, Final

import attrs
import httpx
import jwt
import trio
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from warren.base.errors import InvalidParamsError
from warren.base.principals import Principal
from warren.base.values import define, frozen
from warren.transport.access.jwt_config import ALGORITHMS, JwtConfig
from warren.transport.access.logins import Login, Verifier

FIELD: Final = "$.jwt.keys"
RARELY: Final = 60.0
"""Seconds between two fetches of the keys, however many tokens name an unknown one."""
USUALLY: Final = 600.0
"""Seconds after which the keys are fetched anyhow: a key that its issuer has withdrawn is no longer trusted then."""
TIMEOUT: Final = 5.0
MAX_KEYS: Final = 1024 * 1024
"""Bytes of a key set."""
NEEDED: Final = ("exp", "iss", "aud", "sub")

logger: Final = logging.getLogger(__name__)


@frozen
class SigningKey:
    """A public key of the issuer.

    Attributes:
        kid: its name in tokens; None if it has none.
        algorithm: the one algorithm that it is for; None if it does not say.
        key: the key, as the library takes it.
        mark: the hash of the key, by which it is known to be the same.
    """

    kid: str | None
    algorithm: str | None
    key: Any
    mark: str


def read_keys(data: bytes) -> tuple[SigningKey, ...]:
    """Return the keys of a file or an answer: a key set (JWKS), or one public key in PEM. Raises InvalidParamsError."""
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            return (_signing(load_pem_public_key(data), None, None),)
        found = json.loads(data)["keys"]
        keys = tuple(key for each in found if (key := _of_set(each)) is not None)
    except (ValueError, TypeError, KeyError, RecursionError, UnsupportedAlgorithm) as exc:
        raise InvalidParamsError.at(FIELD, f"is no key set and no public key: {exc!r}") from None
    if not keys:
        raise InvalidParamsError.at(FIELD, f"has no key for {', '.join(ALGORITHMS)}")
    return keys


def _of_set(data: Any) -> SigningKey | None:
    """Return a key of a set; None for one that signs nothing, or by an algorithm that is not accepted."""
    if not isinstance(data, dict) or data.get("use", "sig") != "sig":
        return None
    try:
        found = jwt.PyJWK(data)
    except jwt.PyJWTError:
        return None
    if found.algorithm_name not in ALGORITHMS:  # a shared secret is no public key
        return None
    return _signing(found.key, found.key_id, data.get("alg"))


def _signing(key: Any, kid: str | None, algorithm: str | None) -> SigningKey:
    public = key.public_key() if hasattr(key, "public_key") else key
    mark = sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return SigningKey(kid, algorithm, public, mark)


@define(eq=False)
class RemoteKeys:
    """The keys at a URL.

    Attributes:
        url: the URL.
        http: fetches them.
        use: gets them, each time they were fetched.
        problem: why the last fetch failed; None if it did not.
    """

    url: str
    http: httpx.AsyncClient
    use: Callable[[Sequence[SigningKey]], None]
    problem: str | None = attrs.field(default=None, init=False)
    _fetching: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: float = attrs.field(default=float("-inf"), init=False)

    async def refresh(self) -> None:
        """Fetch the keys, unless they were fetched within the last minute. A failure is logged, and the keys stay."""
        async with self._fetching:
            if trio.current_time() - self._asked < RARELY:
                return
            self._asked = trio.current_time()
            try:
                keys = read_keys(await self._fetch())
            except (httpx.HTTPError, InvalidParamsError, trio.TooSlowError) as exc:
                self.problem = f"the keys at {self.url} cannot be fetched: {str(exc) or type(exc).__name__}"
                logger.error("%s", self.problem)  # noqa: TRY400 - a traceback says no more
                return
            self.problem = None
            self.use(keys)

    async def follow(self) -> None:
        """Fetch the keys now and regularly, until cancelled."""
        while True:
            await self.refresh()
            await trio.sleep(USUALLY if self.problem is None else RARELY)

    async def _fetch(self) -> bytes:
        data = b""
        with trio.fail_after(TIMEOUT):
            async with self.http.stream("GET", self.url) as response, aclosing(response.aiter_bytes()) as parts:  # type: ignore[type-var] # a generator
                response.raise_for_status()
                async for part in parts:
                    data += part
                    if len(data) > MAX_KEYS:
                        raise InvalidParamsError.at(FIELD, f"has more than {MAX_KEYS} bytes")
        return data


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@define(eq=False)
class JwtVerifier(Verifier):
    """Verifies signed tokens.

    Attributes:
        config: the settings.
        keys: the keys of the issuer.
        refresh: awaited if a token names an unknown key; it may set `keys`.
    """

    config: JwtConfig
    keys: Sequence[SigningKey] = ()
    refresh: Callable[[], Awaitable[None]] = _nothing

    def use(self, keys: Sequence[SigningKey]) -> None:
        """Take other keys. Clients whose token was signed by none of them do not hold any longer."""
        self.keys = keys

    def trusts(self, signer: str) -> bool:
        return any(key.mark == signer for key in self.keys)

    async def verify(self, token: str, key: bytes) -> Login | None:
        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # noqa: BLE001 - whatever a stranger's bytes make the library do, they are no token
            return None
        if header.get("alg") not in self.config.algorithms:
            return None
        signing = self._key_of(header)
        if signing is None:
            await self.refresh()
            signing = self._key_of(header)
        return None if signing is None else self._verified(token, key, signing)

    def _key_of(self, header: dict[str, Any]) -> SigningKey | None:
        """Return the key that a token names. A key without a name, or the only one, is for tokens that name none."""
        kid, algorithm = header.get("kid"), header["alg"]
        fitting = [key for key in self.keys if key.algorithm in (None, algorithm)]
        for key in fitting:
            if key.kid is not None and key.kid == kid:
                return key
        nameless = [key for key in fitting if key.kid is None or kid is None]
        return nameless[0] if len(nameless) == 1 else None

    def _verified(self, token: str, key: bytes, signing: SigningKey) -> Login | None:
        config = self.config
        try:
            claims = jwt.decode(
                token,
                signing.key,
                algorithms=list(config.algorithms),
                audience=list(config.audience),
                issuer=config.issuer,
                leeway=config.leeway,
                options={"require": list(NEEDED), "enforce_minimum_key_length": True},
            )
            principal = Principal(config.tenant_of(claims), claims["sub"], config.scopes_of(claims))
            return Login(principal, key, float(claims["exp"]) + config.leeway, signing.mark)
        except Exception:  # noqa: BLE001 - as above
            return None
