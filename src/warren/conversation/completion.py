"""Completion tokens: whoever has one gives the result of one tool call, from outside of the runtime. No I/O."""

import hashlib
import hmac
import json
import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Self

import attrs

from warren.base.fields import FieldValueError, text_problem
from warren.base.values import frozen

MAX_TOKEN: Final = 4_096
"""Characters of a token, which has to fit into the head of an HTTP request."""
LONGEST: Final = 366 * 24 * 3600
"""Seconds for which a token is good, at most."""
FIELD: Final = "token"
"""The parameter that has a token on every surface."""
FORGED: Final = "was not made here: it has another signature than the tokens of this tenant"
_PREFIX: Final = "wct_"
FORM: Final = re.compile(rf"{_PREFIX}([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]{{43}}", re.ASCII)


@frozen
class CompletionToken:
    """The claims of a completion token. Anybody can read them: `CompletionKey.verified` tells whether they are true.

    Attributes:
        tenant: the tenant of the session.
        session_id: the session.
        call_id: the id of the tool call.
        key: the idempotency key of the call.
        until: the time at which the token expires, in whole seconds since 1970.
    """

    tenant: str
    session_id: str
    call_id: str
    key: str
    until: int

    @classmethod
    def read(cls, token: str) -> Self:
        """Return the claims of a token. Raises FieldValueError if the text has not the form of one."""
        found = FORM.fullmatch(token) if len(token) <= MAX_TOKEN else None
        match _claims(found[1]) if found is not None else None:
            case [str() as tenant, str() as session_id, str() as call_id, str() as key, int() as until] if (
                not text_problem(session_id)
            ):
                return cls(tenant, session_id, call_id, key, until)
        raise FieldValueError(FIELD, "is no completion token: give it whole, as the tool has got it")

    @property
    def expires(self) -> datetime:
        """The time at which the token expires (UTC)."""
        return datetime.fromtimestamp(self.until, UTC)

    @property
    def mark(self) -> str:
        """The hash of the claims but the time: all tokens of one call have the same, and no token follows from it."""
        claims = json.dumps([self.tenant, self.session_id, self.call_id, self.key])
        return hashlib.sha256(claims.encode()).hexdigest()


@frozen
class CompletionKey:
    """Signs the completion tokens of one store, and checks them."""

    _key: bytes = attrs.field(repr=False)

    def sign(self, claims: CompletionToken) -> str:
        """Return the token with these claims. Raises ValueError if it is too long, as with a very long call id."""
        body = json.dumps(attrs.astuple(claims), separators=(",", ":")).encode()
        payload = _PREFIX + _text(body)
        token = f"{payload}.{self._signature(payload)}"
        if len(token) > MAX_TOKEN:
            raise ValueError(f"the token would have {len(token)} characters, and {MAX_TOKEN} is the most")
        return token

    def verified(self, token: str, tenant: str | None = None) -> CompletionToken:
        """Return the claims of a token, expired or not.

        Raises FieldValueError if the token was not signed with this key, or is of another tenant than the given one: to
        a tenant the tokens of others look like forged ones.
        """
        claims = CompletionToken.read(token)
        payload, _, signature = token.rpartition(".")
        signed = hmac.compare_digest(signature.encode(), self._signature(payload).encode())
        if not signed or tenant not in (None, claims.tenant):
            raise FieldValueError(FIELD, FORGED)
        return claims

    def _signature(self, payload: str) -> str:
        return _text(hmac.digest(self._key, payload.encode(), "sha256"))


@frozen
class TokenMaker:
    """Makes the completion tokens of the sessions of one tenant.

    Attributes:
        key: signs them.
        tenant: the tenant.
        clock: returns the time.
        wait_id: the id under which the call waits for the result, if that is another one than the call's own.
    """

    key: CompletionKey
    tenant: str
    clock: Callable[[], datetime]
    wait_id: str | None = None

    def make(self, session_id: str, call_id: str, key: str, expires: float) -> str:
        """Return the token of a call of a session, which is good for `expires` seconds.

        Raises ValueError if that is no time up to `LONGEST`, or if the id of the call is too long for a token.
        """
        if not 0 < expires <= LONGEST:
            raise ValueError(f"expires has to be above 0 and at most {LONGEST} seconds, and is {expires}")
        until = math.ceil(self.clock().timestamp() + expires)
        return self.key.sign(CompletionToken(self.tenant, session_id, self.wait_id or call_id, key, until))


def expired(claims: CompletionToken) -> FieldValueError:
    """Return the error for a token that was good."""
    return FieldValueError(FIELD, f"has expired, at {claims.expires:%Y-%m-%d %H:%M:%S} UTC")


def is_completion_token(_instance: object, _attribute: "attrs.Attribute[Any]", value: str) -> None:
    """Refuse texts that have not the form of a completion token."""
    CompletionToken.read(value)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _claims(payload: str) -> Any:
    """Return what a payload says; None if it is no JSON."""
    try:
        return json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return None
