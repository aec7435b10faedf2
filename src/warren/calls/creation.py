"""Idempotency keys of new sessions: one key creates one session, however often the request is sent."""

import json
from collections.abc import Mapping
from typing import Any, Final

from warren.base.errors import InvalidParamsError
from warren.base.values import value
from warren.conversation import codec

FIRST_PROMPT: Final = "session/create"
"""The key of the first prompt of such a session in its inbox."""
_DIGITS: Final = 16


@value
class Creation:
    """A request to create a session under a key.

    Attributes:
        key: the idempotency key that the client chose.
        params: a digest of each parameter that was given.
    """

    key: str
    params: Mapping[str, str]


@value
class Created:
    """The session that a key has created.

    Attributes:
        session_id: the session.
        params: digests of the parameters that it was created with.
        outcome: the stored outcome of the first turn; None until the turn has ended.
    """

    session_id: str
    params: Mapping[str, str]
    outcome: bytes | None = None

    def check(self, wanted: Creation) -> None:
        """Compare a later request with the one that created the session.

        Raises:
            InvalidParamsError: if a parameter differs; the message names all that do.
        """
        names = sorted(self.params.keys() | wanted.params.keys())
        other = [name for name in names if self.params.get(name) != wanted.params.get(name)]
        if other:
            problem = f"$.idempotency_key: the key has created session {self.session_id} with other values of "
            raise InvalidParamsError(f"{problem}{', '.join(other)}: use a new key", path="$.idempotency_key")


def creation_of(key: str, params: Mapping[str, Any]) -> Creation:
    """Return the request of a key and its parameters. A parameter that is None counts as not given."""
    return Creation(key, {name: _digest(given) for name, given in params.items() if given is not None})


def _digest(given: object) -> str:
    from hashlib import sha256  # noqa: PLC0415 - it loads OpenSSL, and few sessions have a key

    text = json.dumps(codec.to_data(given), sort_keys=True, default=repr)
    return sha256(text.encode()).hexdigest()[:_DIGITS]
