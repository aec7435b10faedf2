"""Signatures of webhooks: how calls are signed, and how each scheme's calls are verified. No I/O.

The schemes are Standard Webhooks (https://www.standardwebhooks.com), in which Warren signs its own calls, and the ones
of GitHub and GitLab.
"""

import binascii
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, get_args

from warren.base.values import frozen

Scheme = Literal["standard", "github", "gitlab"]
SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)
TOLERANCE: Final = 300
"""Seconds by which the timestamp of a call may be off, to either side."""
LEAST_BYTES: Final = 24
MOST_BYTES: Final = 64
"""Bytes that the key of a Standard Webhooks secret may have."""
MAX_SECRET: Final = 200
"""Characters of a secret of another scheme."""
PREFIX: Final = "whsec_"
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
_BYTES: Final = 32
_SIGNATURES: Final = 10
"""Signatures of one call that are compared: a sender that changes its secret sends two."""
_SHA256: Final = re.compile(r"sha256=[0-9a-f]{64}", re.ASCII)


class BadSecretError(ValueError):
    """The text is no secret of its scheme; the message says what is missing, and never has the secret."""


@frozen
class Verified:
    """A call whose signature is right.

    Attributes:
        delivery_id: the sender's id of the call, which is the same one when the call is sent again; None if there is
            none.
        event: the kind of event, as the sender names it in a header; None if it does not.
    """

    delivery_id: str | None
    event: str | None = None


def new_secret() -> str:
    """Return a new secret. It has the form of Standard Webhooks, and is good for each scheme."""
    return PREFIX + b64encode(secrets.token_bytes(_BYTES)).decode()


def check_secret(secret: str, scheme: Scheme = "standard") -> None:
    """Raise BadSecretError if a text is no secret of a scheme."""
    if scheme == "standard":
        key_of(secret)
    elif not secret.strip() or len(secret) > MAX_SECRET or not (secret.isascii() and secret.isprintable()):
        raise BadSecretError(f"must be 1 to {MAX_SECRET} printable ASCII characters")


def key_of(secret: str) -> bytes:
    """Return the key that a Standard Webhooks secret stands for. Raises BadSecretError."""
    problem = f"must be {PREFIX} and the Base64 form of {LEAST_BYTES} to {MOST_BYTES} random bytes"
    if not secret.startswith(PREFIX):
        raise BadSecretError(problem)
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecretError(problem) from None
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise BadSecretError(problem)
    return key


def signed_headers(secret: str, message_id: str, moment: datetime, body: bytes) -> dict[str, str]:
    """Return the headers of a call, signed by Standard Webhooks.

    Args:
        secret: the secret.
        message_id: the id of the call, the same one when it is sent again. It has no dot.
        moment: the time at which the call is sent.
        body: the body, as it is sent.

    Raises BadSecretError.
    """
    timestamp = str(int(moment.timestamp()))
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: _standard(key_of(secret), message_id, timestamp, body)}


def verify(scheme: Scheme, secret: str, headers: Mapping[str, str], body: bytes, now: datetime) -> Verified | None:
    """Return what a call says of itself; None if it was not signed with the secret, or too long ago.

    The time that it takes does not depend on the secret.

    Args:
        scheme: the scheme of the sender.
        secret: the secret.
        headers: the headers, with lower-case names.
        body: the body, as it came.
        now: the time.
    """
    # A token is no signature, and still takes the time of one: nobody can tell by it which scheme a call meets.
    signature = hmac.digest(secret.encode(), body, "sha256") if scheme != "standard" else b""
    if scheme == "github":
        wanted = f"sha256={signature.hex()}"
        given = headers.get("x-hub-signature-256", "")
        found = Verified(headers.get("x-github-delivery"), headers.get("x-github-event"))
        return found if _SHA256.fullmatch(given) and _equal(given, wanted) else None
    if scheme == "gitlab":
        found = Verified(headers.get("idempotency-key"), headers.get("x-gitlab-event"))
        return found if _equal(headers.get("x-gitlab-token", ""), secret) else None
    message_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    wanted = _standard(key_of(secret), message_id, timestamp, body)
    good = [each for each in headers.get(SIGNATURE, "").split()[:_SIGNATURES] if _equal(each, wanted)]
    # With a dot in the id, the beginning of a body could pass for its timestamp.
    return Verified(message_id or None) if good and "." not in message_id and _is_recent(timestamp, now) else None


def _standard(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = b"%s.%s.%s" % (message_id.encode(), timestamp.encode(), body)
    return f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _is_recent(timestamp: str, now: datetime) -> bool:
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= len(str(2**63))):
        return False
    return abs(now.timestamp() - int(timestamp)) <= TOLERANCE
