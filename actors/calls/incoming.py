"""Signed calls of triggers: each becomes a prompt once, however often and wherever it comes."""

import logging
from typing import Final

import attrs

from warren.actors.calls.delivering import deliver, sender_of
from warren.actors.calls.local import Local
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.base.ids import id_under
from warren.base.principals import Principal
from warren.base.signatures import Scheme, Verified, new_secret, verify
from warren.base.values import frozen
from warren.calls.facade import Opened
from warren.conversation.triggers import (
    MAX_DELIVERY_ID,
    BadBodyError,
    Delivered,
    Delivery,
    DeliveryState,
    SignedCall,
    Trigger,
    key_of,
    prompt_of,
)
from warren.storage.operations import KeepDelivery
from warren.storage.queries import ANY_TENANT, DeliveryOf, TriggerRow

UNSIGNED: Final = "no trigger has this address, or the call was not signed with its secret"
ENDED: Final = "the trigger has ended"
REFUSED: Final = "the prompt was refused: the deliveries of the trigger say why"
_NOBODYS: Final = new_secret()

logger: Final = logging.getLogger("warren.triggers")


async def opened(local: Local, call: SignedCall) -> "Incoming":
    """Return a call whose signature is right.

    Raises InvalidParamsError at `$.trigger_id` if it is not, and if there is no such trigger: nobody can tell which,
    and both take the same work.
    """
    trigger = await local.read(TriggerRow(ANY_TENANT, call.trigger_id))
    scheme: Scheme = "standard" if trigger is None else trigger.scheme
    secret = _NOBODYS if trigger is None else trigger.secret
    verified = verify(scheme, secret, call.headers, call.body, local.supervisor.shared.storage.now())
    if trigger is None or verified is None:
        logger.info("a call was not signed with the secret of its trigger: trigger=%.100r", call.trigger_id)
        raise InvalidParamsError.at("$.trigger_id", UNSIGNED)
    return Incoming(local, trigger, verified, call.body)


@frozen
class Incoming(Opened):
    """A call whose signature is right."""

    _local: Local
    _trigger: Trigger
    _verified: Verified
    _body: bytes = attrs.field(repr=False)

    @property
    def principal(self) -> Principal:
        return sender_of(self._trigger)

    async def deliver(self) -> Delivered:
        trigger, delivery_id = self._trigger, self._delivery_id()
        if trigger.scheme == "github" and self._verified.event == "ping":
            return Delivered(delivery_id, "ping")
        key = key_of(trigger.trigger_id, delivery_id)
        known, busy = await self._local.read(DeliveryOf(trigger.tenant, trigger.trigger_id, delivery_id))
        if known is not None and known.state == "fired":
            return Delivered(delivery_id, "fired", known.session_id, id_under(key))
        if trigger.problem is not None:
            raise SessionNotFoundError(ENDED, session_id=trigger.session_id)
        if trigger.paused:
            raise SessionNotRunningError("the trigger is paused", session_id=trigger.session_id)
        if known is not None and known.state == "skipped":
            return Delivered(delivery_id, "skipped")
        if busy and trigger.overlap == "skip":
            await self._keep(delivery_id, "skipped")
            return Delivered(delivery_id, "skipped")
        session_id = await self._sent(delivery_id, key)
        await self._keep(delivery_id, "fired", session_id)
        return Delivered(delivery_id, "fired", session_id, id_under(key))

    def _delivery_id(self) -> str:
        found = self._verified.delivery_id
        if not found or len(found) > MAX_DELIVERY_ID or not found.isprintable():
            problem = f"the call needs an id of 1 to {MAX_DELIVERY_ID} characters, see the scheme of the trigger"
            raise InvalidParamsError.at("$.headers", problem)
        return found

    async def _sent(self, delivery_id: str, key: str) -> str:
        """Put the prompt into the inbox of its session, and return the session; keep why it was refused."""
        session_id = self._trigger.session_id
        try:
            prompt = prompt_of(self._trigger.prompt, self._body, self._verified.event)
            return await deliver(self._local, self._trigger, prompt, key)
        except SessionNotFoundError as exc:  # it is archived, or was deleted a moment ago
            ended = exc.message if session_id is not None else None
            await self._keep(delivery_id, "failed", session_id, exc.message, ended=ended)
            raise SessionNotFoundError(ENDED, session_id=session_id) from exc
        except BadBodyError as exc:
            await self._keep(delivery_id, "failed", session_id, str(exc))
            raise InvalidParamsError.at("$.body", str(exc)) from None
        except WarrenError as exc:
            if exc.retryable or isinstance(exc, StoreError | AgentError):  # sent again, the key finds what was done
                raise
            await self._keep(delivery_id, "failed", session_id, exc.message)
            raise InvalidParamsError.at("$", REFUSED) from exc
        except Exception:  # the host's code, which makes tools and compactors of a new session, may raise anything
            await self._keep(delivery_id, "failed", session_id, "it crashed: see the log")
            raise

    async def _keep(
        self,
        delivery_id: str,
        state: DeliveryState,
        session_id: str | None = None,
        problem: str | None = None,
        *,
        ended: str | None = None,
    ) -> None:
        """Keep what became of the call; `ended` is the reason why the trigger has ended with it."""
        storage = self._local.supervisor.shared.storage
        delivery = Delivery(delivery_id, state, storage.now(), session_id, problem)
        await storage.write(KeepDelivery(self._trigger.trigger_id, delivery, ended))
