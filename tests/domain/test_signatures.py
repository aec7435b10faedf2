"""Signatures of webhooks, by the examples of those who define the schemes."""

from datetime import UTC, datetime, timedelta

import pytest

from warren.base.signatures import (
    PREFIX,
    SCHEMES,
    TOLERANCE,
    BadSecretError,
    Scheme,
    Verified,
    check_secret,
    key_of,
    new_secret,
    signed_headers,
    verify,
)

# The example of the specification of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - it is published
MESSAGE = "msg_p5jXN8AQM9LWM0D4loKWxJek"
MOMENT = datetime.fromtimestamp(1614265330, UTC)
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": MESSAGE, "webhook-timestamp": "1614265330", "webhook-signature": SIGNATURE}
# The example of GitHub's documentation.
GITHUB = "It's a Secret to Everybody"
HELLO = b"Hello, World!"
HELLO_SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


def standard(*, secret: str = SECRET, body: bytes = BODY, now: datetime = MOMENT, **changes: str) -> Verified | None:
    """Verify the example with other headers."""
    headers = {**HEADERS, **{f"webhook-{name}": value for name, value in changes.items()}}
    return verify("standard", secret, headers, body, now)


def test_standard_webhooks() -> None:
    """The published example is signed as it is there, and verified."""
    assert signed_headers(SECRET, MESSAGE, MOMENT, BODY) == HEADERS
    assert standard() == Verified(MESSAGE)
    other = f"v1a,{SIGNATURE[3:]} v1,AAAA {SIGNATURE}"
    assert standard(signature=other) == Verified(MESSAGE)  # one of several, after a change of the secret


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "other"},
        {"timestamp": "1614265331"},
        {"timestamp": ""},
        {"signature": ""},
        {"signature": SIGNATURE.lower()},
        {"signature": SIGNATURE[3:]},
        {"signature": " ".join(["v1,AAAA"] * 10 + [SIGNATURE])},
        {"signature": "v1,\u00fc"},
        {"body": BODY + b" "},
        {"secret": new_secret()},
    ],
)
def test_a_changed_call_of_standard_webhooks_is_not_verified(changes: dict[str, str]) -> None:
    """Nothing that is signed may change, and the signature is compared whole."""
    assert standard(**changes) is None  # type: ignore[arg-type] # one of them is the body


def test_timestamps_have_to_be_recent() -> None:
    """They may be five minutes off, to either side; only a whole number is one, also with a right signature."""
    for seconds, good in ((TOLERANCE, True), (-TOLERANCE, True), (TOLERANCE + 1, False), (-TOLERANCE - 1, False)):
        assert (standard(now=MOMENT + timedelta(seconds=seconds)) is not None) == good
    key = key_of(SECRET)
    for timestamp in ("1614265330.0", "-1", "\u0661", "1e9", "9" * 5000, " 1614265330"):
        signature = _signed(key, MESSAGE, timestamp)
        assert standard(timestamp=timestamp, signature=signature) is None


def test_an_id_has_no_dot() -> None:
    """Else the beginning of a body that was signed could pass for a timestamp, and the call for another one."""
    body = b"1614265330.{}"
    signature = signed_headers(SECRET, "a", MOMENT, body)["webhook-signature"]
    moved = {"id": "a.1614265330", "timestamp": "1614265330", "signature": signature}
    assert standard(body=b"{}", **moved) is None  # type: ignore[arg-type] # all are headers


def _signed(key: bytes, message_id: str, timestamp: str) -> str:
    import hmac  # noqa: PLC0415 - only here: all other signatures are published ones
    from base64 import b64encode  # noqa: PLC0415

    signed = f"{message_id}.{timestamp}.".encode() + BODY
    return f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


def test_github() -> None:
    """The published example is verified; the ids come from their headers."""
    headers = {"x-hub-signature-256": HELLO_SIGNATURE, "x-github-delivery": "d", "x-github-event": "push"}
    assert verify("github", GITHUB, headers, HELLO, MOMENT) == Verified("d", "push")
    assert verify("github", GITHUB, {"x-hub-signature-256": HELLO_SIGNATURE}, HELLO, MOMENT) == Verified(None)
    assert verify("github", GITHUB, headers, HELLO + b"!", MOMENT) is None
    assert verify("github", GITHUB + "!", headers, HELLO, MOMENT) is None
    for bad in ("", HELLO_SIGNATURE[7:], HELLO_SIGNATURE.replace("sha256", "sha1"), HELLO_SIGNATURE + "0", "\u00fc"):
        assert verify("github", GITHUB, {**headers, "x-hub-signature-256": bad}, HELLO, MOMENT) is None


def test_gitlab() -> None:
    """The token is the secret; the id is that of the call, the same one when it is sent again."""
    headers = {"x-gitlab-token": "swordfish", "idempotency-key": "d", "x-gitlab-event": "Push Hook"}
    assert verify("gitlab", "swordfish", headers, HELLO, MOMENT) == Verified("d", "Push Hook")
    for bad in ({}, {"x-gitlab-token": ""}, {"x-gitlab-token": "swordfis\u00fc"}):
        assert verify("gitlab", "swordfish", bad, HELLO, MOMENT) is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_new_secret_is_good_for_each_scheme(scheme: Scheme) -> None:
    """No two are the same."""
    made = {new_secret() for _ in range(9)}
    assert len(made) == 9
    for each in made:
        check_secret(each, scheme)


@pytest.mark.parametrize(
    ("scheme", "secret"),
    [
        ("standard", ""),
        ("standard", "swordfish"),
        ("standard", PREFIX),
        ("standard", f"{PREFIX}!!!!"),
        ("standard", f"{PREFIX}{'A' * 28}"),
        ("standard", f"{PREFIX}{'A' * 88}"),
        ("github", ""),
        ("github", " "),
        ("github", "a\nb"),
        ("github", "a" * 201),
        ("gitlab", "caf\u00e9"),
    ],
)
def test_bad_secrets_are_refused(scheme: Scheme, secret: str) -> None:
    """The error does not repeat the secret."""
    with pytest.raises(BadSecretError) as refused:
        check_secret(secret, scheme)
    assert len(secret) < 7 or secret not in str(refused.value)
