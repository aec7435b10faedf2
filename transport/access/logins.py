"""The logins of clients: the principal behind each token, and whether its client may stay. No I/O."""

import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Protocol

import attrs

from warren.base.principals import DEFAULT_TENANT, LOCAL, Principal, Scope, check_right
from warren.base.values import define, frozen
from warren.transport.access.refusals import RefusedError

MAX_ACTING: Final = 1_000
"""Logins of clients that work in other tenants which are remembered."""
MAX_VERIFIED: Final = 10_000
"""Verified tokens that are remembered; one more makes room by forgetting all of them."""
REALM: Final = ("WWW-Authenticate", "Bearer")
INVALID: Final = ("WWW-Authenticate", 'Bearer error="invalid_token"')
"""The answer to every bad token: it does not say whether the token is unknown, revoked, expired or forged."""
HEADER: Final = "$.headers.authorization"
PASSED_ON: Final = "warren.passed_on"
"""The key in the scope of a request (ASGI) whose value is True if another node has passed it on for its client."""
PRINCIPAL: Final = "warren.principal"
"""The key in the scope of a request (ASGI) whose value is the principal of its client, for applications behind REST."""
SIGN_IN: Final = "warren.sign_in"
"""The key in the scope of a request (ASGI) whose value is the `SignIn` of its application, if that has a principal."""


class SignIn(Protocol):
    """Tells clients how to get a token with more rights."""

    def challenge(self, scope: MutableMapping[str, Any], principal: Principal, needed: Scope) -> str:
        """Return the `WWW-Authenticate` for a request (ASGI) of a principal without the scope that it needs."""


@frozen(eq=False)
class Login:
    """A client that was let in. It is compared by identity: one token has one login as long as nothing changes.

    Attributes:
        principal: the client.
        key: the hash of its token; empty if it needed none.
        expires: the end of the token, in seconds since 1970; None if it has none.
        signer: the key that signed the token; None if the token is one of a list.
        own: the login of its token, if the client works in another tenant than that of the token.
    """

    principal: Principal
    key: bytes = attrs.field(default=b"", repr=False)
    expires: float | None = None
    signer: str | None = None
    own: "Login | None" = None

    @lru_cache(MAX_ACTING)  # noqa: B019 - a bounded number of small values
    def within(self, tenant: str) -> "Login":
        """Return the login of the same client for its work in a tenant that it has named.

        Raises PermissionDeniedError if it is another tenant than its own, whether there is such a one or not, and the
        client lacks the scope `tenant:admin`; FieldValueError for a text that cannot be the name of a tenant.
        """
        principal = self.principal
        if tenant == principal.tenant:
            return self
        check_right(principal, "tenant:admin")
        name, home = f"{principal.tenant}/{principal.name}", principal.tenant
        acting = attrs.evolve(principal, tenant=tenant, name=name, home=home)
        return attrs.evolve(self, principal=acting, own=self)


class Verifier(Protocol):
    """Verifies tokens that carry their own claims."""

    async def verify(self, token: str, key: bytes) -> Login | None:
        """Return the login of a token; None if the token is not valid. `key` is the hash of the token."""

    def trusts(self, signer: str) -> bool:
        """Return whether a key that has signed a token is still one of those that may."""


def key_of(token: str) -> bytes:
    """Return the hash by which a token is known.

    A token has 256 random bits, so a plain hash cannot be reversed, and needs neither salt nor many rounds. The look-up
    in a dict may tell by its time something about hashes, and nobody can choose a token by its hash.
    """
    return sha256(token.encode()).digest()


def unauthorized(token: str | None) -> RefusedError:
    """Return the refusal (401) of a client without a token, or with a bad one."""
    return RefusedError(401, "a valid bearer token is needed", REALM if token is None else INVALID, field=HEADER)


LOCAL_LOGIN: Final = Login(LOCAL)
"""The login of the clients of an open server whose service names no other principal."""


def single(token: str) -> Mapping[bytes, Login]:
    """Return the list of one token, whose clients may do everything within the default tenant."""
    key = key_of(token)
    return {key: Login(Principal(DEFAULT_TENANT, "token"), key)}


@define(eq=False)
class Authenticator:
    """The tokens that are let in: those of a list, and those that a verifier knows.

    Attributes:
        tokens: the login of each token in the list, by the hash of the token; None without a list. A new list may take
            its place at any time.
        verifier: verifies the tokens that are not in the list; None if no others are let in.
        unnamed: the login of every client if none needs a token.
        clock: the time in seconds since 1970.
    """

    tokens: Mapping[bytes, Login] | None = attrs.field(default=None, repr=False)
    verifier: Verifier | None = None
    unnamed: Login = LOCAL_LOGIN
    clock: Callable[[], float] = time.time
    _verified: dict[bytes, Login] = attrs.field(factory=dict, init=False)

    @property
    def is_open(self) -> bool:
        """Whether clients need no token: each of them has the login `unnamed`."""
        return self.tokens is None and self.verifier is None

    @property
    def is_alone(self) -> bool:
        """Whether all clients are one principal: they need no token, or there is only one."""
        return self.verifier is None and (self.tokens is None or len(self.tokens) == 1)

    async def authenticate(self, token: str | None) -> Login:
        """Return the login of a client by its token; None is no token. Raises RefusedError (401)."""
        if self.is_open:
            return self.unnamed
        if token is None:
            raise unauthorized(token)
        key = key_of(token)
        login = self._known(key)
        if login is None and self.verifier is not None:
            login = await self.verifier.verify(token, key)
            if login is not None:
                if len(self._verified) >= MAX_VERIFIED:
                    self._verified.clear()
                self._verified[login.key] = login
        if login is None or self._has_ended(login):
            raise unauthorized(token)
        return login

    def use(self, tokens: Mapping[bytes, Login]) -> None:
        """Let the tokens of a new list in, in the place of the old one."""
        self.tokens = tokens

    def ended(self, token: str) -> Principal | None:
        """Return the principal of a token in the list that has ended; None for any other token."""
        login = None if self.tokens is None else self.tokens.get(key_of(token))
        return None if login is None or not self._has_ended(login) else login.principal

    def holds(self, login: Login) -> bool:
        """Return whether a client may stay: its token has not expired, was not revoked, and has the same rights."""
        if login.own is not None:
            return self.holds(login.own)
        if self.is_open or login is self.unnamed:
            return self.is_open
        if login.signer is not None:
            return self.verifier is not None and self.verifier.trusts(login.signer) and not self._has_ended(login)
        found = None if self.tokens is None else self.tokens.get(login.key)
        return found is not None and found.principal == login.principal and not self._has_ended(found)

    def _known(self, key: bytes) -> Login | None:
        if self.tokens is not None and (found := self.tokens.get(key)) is not None:
            return found
        found = self._verified.get(key)
        if found is not None and not self.holds(found):
            del self._verified[key]
            return None
        return found

    def _has_ended(self, login: Login) -> bool:
        return login.expires is not None and self.clock() >= login.expires
