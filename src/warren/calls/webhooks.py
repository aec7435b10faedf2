"""Calls about webhooks: addresses to which what happens in sessions is posted."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from warren.base.fields import (
    CAN_CONFLICT,
    AtMost,
    Between,
    FieldValueError,
    Labels,
    OneOf,
    is_flag,
    is_text,
    is_whole,
    not_blank,
    optional,
)
from warren.base.values import frozen
from warren.calls.answers import Deleted, Resent
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts
from warren.conversation.options import MAX_KEY
from warren.conversation.webhooks import (
    MAX_WEBHOOK_URL,
    POST_STATES,
    WEBHOOK_EVENTS,
    PostState,
    WebhookDeliveryPage,
    WebhookEvent,
    WebhookPage,
    WebhookView,
    is_secret,
)


def _are_events(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse what is no list of events, and an empty one."""
    if not isinstance(value, tuple | list):
        raise FieldValueError(attribute.name, "must be a list")
    for at, each in enumerate(value):
        if each not in WEBHOOK_EVENTS:
            raise FieldValueError(f"{attribute.name}[{at}]", f"must be one of {', '.join(WEBHOOK_EVENTS)}")
    if not value:
        raise FieldValueError(attribute.name, "must name an event; leave it out for all of them")


def _is_address(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse texts that are too long to be an address, and empty ones."""
    is_text(instance, attribute, value)
    not_blank(instance, attribute, value)
    AtMost(MAX_WEBHOOK_URL)(instance, attribute, value)


@frozen
class WebhookRequest(Call[WebhookView]):
    """A webhook to make.

    Attributes:
        url: the address, which begins with https://. Addresses of private networks are refused, unless the settings
            allow them; those may begin with http://.
        events: what it is told of; null for everything.
        session_id: the one session of which it is told; null for those with the labels.
        labels: the labels that a session has to have, all of them; null for all sessions.
        paused: whether it is told of nothing until it is changed.
        secret: the secret that signs: whsec_ and the base64 of 24 to 64 random bytes; null makes one.
        idempotency_key: of your own: a request that is sent again under the same key makes no second webhook, and has
            the first one as its result.
    """

    facts: ClassVar[Facts] = Facts(
        name="webhook/create",
        doc="Make a webhook: an address to which what happens in sessions is posted. The answer alone has its secret.",
        scope="session:write",
        audited="webhook",
    )
    url: str = attrs.field(validator=_is_address, metadata=CAN_CONFLICT)
    events: tuple[WebhookEvent, ...] | None = attrs.field(default=None, validator=optional(_are_events), kw_only=True)
    session_id: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True, metadata=CAN_CONFLICT)
    labels: Mapping[str, str] | None = attrs.field(
        default=None, validator=optional(Labels()), kw_only=True, metadata=CAN_CONFLICT
    )
    paused: bool = attrs.field(default=False, validator=is_flag, kw_only=True)
    secret: str | None = attrs.field(
        default=None, validator=optional(is_secret), kw_only=True, repr=False, metadata=CAN_CONFLICT
    )
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse labels for one session. Raises FieldValueError."""
        if self.session_id is not None and self.labels is not None:
            raise FieldValueError("labels", "do not go with `session_id`")


@frozen
class WebhookChange(Call[WebhookView]):
    """A change of a webhook; what is null stays as it is.

    Attributes:
        webhook_id: the webhook.
        url: the new address.
        events: what it is told of.
        labels: the labels that a session has to have; they replace those before.
        paused: whether it is told of nothing. One that Warren has paused goes on with false.
        rotate_secret: whether it gets a new secret, which the answer has. The old one signs too for 24 hours.
        secret: the new secret; null makes one.
    """

    facts: ClassVar[Facts] = Facts(
        name="webhook/change",
        doc="Change a webhook, pause it, let it go on, or give it a new secret.",
        scope="session:write",
        audited="webhook",
    )
    webhook_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)
    url: str | None = attrs.field(default=None, validator=optional(_is_address), kw_only=True, metadata=CAN_CONFLICT)
    events: tuple[WebhookEvent, ...] | None = attrs.field(default=None, validator=optional(_are_events), kw_only=True)
    labels: Mapping[str, str] | None = attrs.field(
        default=None, validator=optional(Labels()), kw_only=True, metadata=CAN_CONFLICT
    )
    paused: bool | None = attrs.field(default=None, validator=optional(is_flag), kw_only=True)
    rotate_secret: bool = attrs.field(default=False, validator=is_flag, kw_only=True)
    secret: str | None = attrs.field(
        default=None, validator=optional(is_secret), kw_only=True, repr=False, metadata=CAN_CONFLICT
    )

    def __attrs_post_init__(self) -> None:
        """Refuse a secret that is not to be the new one. Raises FieldValueError."""
        if self.secret is not None and not self.rotate_secret:
            raise FieldValueError("secret", "goes with `rotate_secret`")


@frozen
class WebhookDeletion(Call[None]):
    """A webhook to remove, with all that is still to be posted to it.

    Attributes:
        webhook_id: the webhook.
    """

    facts: ClassVar[Facts] = Facts(
        name="webhook/delete",
        doc="Remove a webhook, with all that is still to be posted to it.",
        scope="session:write",
        repeatable=True,
        audited="unwebhook",
        wraps=Deleted,
    )
    webhook_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)


@frozen(kw_only=True)
class WebhooksRequest(Call[WebhookPage]):
    """A page of the webhooks.

    Attributes:
        session_id: return only those that are told of this session alone.
        offset: number of webhooks to skip.
        limit: the most webhooks to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="webhook/list",
        doc="List the webhooks, the oldest first, without their secrets.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    session_id: str | None = attrs.field(default=None, validator=optional(is_text))
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])


@frozen
class DeliveriesRequest(Call[WebhookDeliveryPage]):
    """A page of the deliveries of a webhook.

    Attributes:
        webhook_id: the webhook.
        state: return only those that are `pending`, `delivered` or `dead`.
        offset: number of deliveries to skip.
        limit: the most deliveries to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="delivery/list",
        doc="List what was posted to a webhook and what is still to be, the newest first.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    webhook_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)
    state: PostState | None = attrs.field(default=None, validator=optional(OneOf(POST_STATES)), kw_only=True)
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)], kw_only=True)
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)], kw_only=True)


@frozen
class ResendRequest(Call[int]):
    """Deliveries to attempt again that have failed for good.

    Attributes:
        webhook_id: the webhook.
        delivery_id: the one delivery; null for all dead ones of the webhook.
    """

    facts: ClassVar[Facts] = Facts(
        name="delivery/resend",
        doc="Attempt dead deliveries of a webhook again, under their ids.",
        scope="session:write",
        repeatable=True,
        audited="webhook",
        wraps=Resent,
    )
    webhook_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)
    delivery_id: str | None = attrs.field(default=None, validator=optional(is_text), metadata=CAN_CONFLICT)
