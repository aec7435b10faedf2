"""The bearer token by which a node knows another one: signed with the secret of their store. No I/O.

The node that is called gives a challenge, and lets the caller in that signs it. Only its own clock decides for how long
a challenge is good, so the clocks of two nodes may differ by any time.
"""

import binascii
import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import attrs

from warren.base.values import define
from warren.transport.access.auth import NODE_CHALLENGE, NODE_PREFIX
from warren.transport.access.refusals import RefusedError

OLDEST, NEWEST = 3, 3
"""The versions of the links that this release speaks: two nodes speak the newest that both know.

Links are the calls and events of the gateway's own protocol. A receiver ignores fields, events and claims that it does
not know, and a sender leaves out options that are not set. So a new field needs no new version: a change does that an
older node would take for something else. Version 2 has calls on behalf of principals, which a node that speaks only 1
would take for calls of the local user, or refuse. Version 3 has challenges: before, a token told its end by the clock
of its node.
"""
LIFETIME: Final = 30.0
"""Seconds for which a challenge is good, by the clock of the node that gave it."""


@define(eq=False)
class NodeTokens:
    """Makes and checks the tokens of one node.

    Attributes:
        secret: the secret of the cluster.
        key: the number of this node; None while the store does not know it.
        name: its name, for the log of the node that is called.
        versions: the oldest and the newest version of the links that it speaks.
        clock: the time in seconds.
    """

    secret: bytes
    key: int | None
    name: str
    clock: Callable[[], float] = time.monotonic
    versions: tuple[int, int] = (OLDEST, NEWEST)
    _met: OrderedDict[str, float] = attrs.field(factory=OrderedDict)

    def __repr__(self) -> str:
        return f"NodeTokens(key={self.key!r}, name={self.name!r})"

    def make(self, callee: int, challenge: str = "") -> str:
        """Return a token for a call of the node with a number, which has given a challenge; empty asks it for one."""
        claims = {
            "from": self.key,
            "name": self.name,
            "to": callee,
            "challenge": challenge,
            "salt": secrets.token_urlsafe(12),  # a proof that was heard once is for no other token
            "versions": self.versions,
        }
        payload = _text(json.dumps(claims).encode())
        return f"{NODE_PREFIX}{payload}.{self._signature(payload)}"

    def accepts(self, token: str) -> bool:
        """Return whether a token is of a node of this cluster, is meant for this node, and was not used before.

        Raises RefusedError: 409 if it is of such a node, and the two speak no version of the links in common; 401 with
        a challenge if it has not answered one, or one of long ago.
        """
        payload, _, signature = token.removeprefix(NODE_PREFIX).partition(".")
        if not token.startswith(NODE_PREFIX) or not hmac.compare_digest(
            signature.encode(), self._signature(payload).encode()
        ):
            return False
        try:
            claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            good = claims["to"] == self.key
            oldest, newest = claims.get("versions", (1, 1))
            common = oldest <= self.versions[1] and self.versions[0] <= newest
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            return False
        if good and not common:
            raise RefusedError(
                HTTPStatus.CONFLICT,
                f"node {self.name} speaks the versions {_span(*self.versions)} of the links between nodes, node "
                f"{claims.get('name')} speaks {_span(oldest, newest)}: end the node of the older release",
                field="$.headers.authorization",
            )
        if good and not self._meets(str(claims.get("challenge"))):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "the token of a node has to answer this challenge",
                (NODE_CHALLENGE, self._challenge()),
                field="$.headers.authorization",
            )
        return bool(good)

    def _challenge(self) -> str:
        payload = f"{self.clock() + LIFETIME:.3f}~{secrets.token_urlsafe(12)}"
        return f"{payload}~{self._signature(f'challenge of {self.key}: {payload}')}"

    def _meets(self, challenge: str) -> bool:
        """Return whether a challenge is of this node, and neither too old nor met before."""
        payload, _, signature = challenge.rpartition("~")
        right = self._signature(f"challenge of {self.key}: {payload}")
        if not hmac.compare_digest(signature.encode(), right.encode()):
            return False
        now, until = self.clock(), float(payload.partition("~")[0])
        # The oldest first: one that is behind another which is still good stays for a lifetime more at most.
        while self._met and self._met[oldest := next(iter(self._met))] < now:
            del self._met[oldest]
        fresh = now <= until and challenge not in self._met
        self._met[challenge] = until
        return fresh

    def proof(self, token: str) -> str:
        """Return the text by which the node that a token is meant for shows that it is of the cluster."""
        return self._signature(f"proof of {token}")

    def proves(self, token: str, proof: str) -> bool:
        """Return whether a text is the proof for a token."""
        return hmac.compare_digest(proof.encode(), self.proof(token).encode())

    def _signature(self, payload: str) -> str:
        return _text(hmac.digest(self.secret, payload.encode(), "sha256"))


def _span(oldest: int, newest: int) -> str:
    return f"{oldest} to {newest}"


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
