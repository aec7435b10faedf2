"""Calls about triggers: prompts that come when a signed call comes."""

from typing import ClassVar

import attrs

from warren.base.fields import (
    CAN_CONFLICT,
    AtMost,
    Between,
    FieldValueError,
    InstanceOf,
    OneOf,
    is_flag,
    is_text,
    is_whole,
    not_blank,
    optional,
)
from warren.base.signatures import SCHEMES, BadSecretError, Scheme, check_secret
from warren.base.values import frozen
from warren.calls.answers import Deleted
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts
from warren.conversation.options import MAX_KEY, SessionTemplate
from warren.conversation.schedules import OVERLAPS, Overlap
from warren.conversation.triggers import TriggerPage, TriggerView, is_template


@frozen
class TriggerRequest(Call[TriggerView]):
    """A trigger to make: a prompt that comes when a signed HTTP call comes to `POST /triggers/ID`.

    Attributes:
        prompt: the prompt. `{body}` in it becomes the text of the call's body, `{body.a.b}` a member of its JSON, and
            `{event}` the kind of event that the headers of GitHub and GitLab name; what is missing is empty.
        session_id: the session that gets it, as a queued prompt; null makes a new session each time.
        new_session: the options of new sessions.
        scheme: how calls are signed: `standard` by Standard Webhooks, `github` as GitHub does; `gitlab` calls are not
            signed, and show the secret itself.
        secret: the secret of the calls; null makes one. The answer has it, and no other answer ever again.
        overlap: while the prompt of the call before has not ended, `queue` lets the prompt wait in its session, and
            `skip` leaves the call out. Each new session gets its own prompt at once.
        paused: whether calls are turned away until it is changed.
        idempotency_key: of your own: a request that is sent again under the same key makes no second trigger, and has
            the first one as its result.
    """

    facts: ClassVar[Facts] = Facts(
        name="trigger/create",
        doc="Make a trigger: a prompt that comes when a signed HTTP call comes, for a session or a new one each time.",
        scope="session:write",
        audited="trigger",
    )
    prompt: str = attrs.field(validator=[is_text, not_blank, is_template])
    session_id: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True, metadata=CAN_CONFLICT)
    new_session: SessionTemplate | None = attrs.field(
        default=None, validator=InstanceOf(SessionTemplate), kw_only=True, metadata=CAN_CONFLICT
    )
    scheme: Scheme = attrs.field(default="standard", validator=OneOf(SCHEMES), kw_only=True)
    secret: str | None = attrs.field(
        default=None, validator=optional(is_text), kw_only=True, repr=False, metadata=CAN_CONFLICT
    )
    overlap: Overlap = attrs.field(default="queue", validator=OneOf(OVERLAPS), kw_only=True)
    paused: bool = attrs.field(default=False, validator=is_flag, kw_only=True)
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options of new sessions for a session that is there, and bad secrets. Raises FieldValueError."""
        if self.session_id is not None and self.new_session is not None:
            raise FieldValueError("new_session", "does not go with `session_id`")
        if self.secret is not None:
            check(self.secret, self.scheme)


@frozen
class TriggerChange(Call[TriggerView]):
    """A change of a trigger; what is null stays as it is. One that has ended, as its session is archived, stays so.

    Attributes:
        trigger_id: the trigger.
        prompt: the new prompt.
        overlap: what happens to a call while the prompt of the one before has not ended.
        paused: whether calls are turned away.
        rotate_secret: whether it gets a new secret, which the answer has. Calls that are signed with the old one are
            refused from then on.
        secret: the new secret; null makes one. It goes with `rotate_secret`.
    """

    facts: ClassVar[Facts] = Facts(
        name="trigger/change",
        doc="Change a trigger, pause it, let it go on, or give it a new secret.",
        scope="session:write",
        audited="trigger",
    )
    trigger_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)
    prompt: str | None = attrs.field(default=None, validator=optional(is_text, not_blank, is_template), kw_only=True)
    overlap: Overlap | None = attrs.field(default=None, validator=optional(OneOf(OVERLAPS)), kw_only=True)
    paused: bool | None = attrs.field(default=None, validator=optional(is_flag), kw_only=True)
    rotate_secret: bool = attrs.field(default=False, validator=is_flag, kw_only=True)
    secret: str | None = attrs.field(
        default=None, validator=optional(is_text), kw_only=True, repr=False, metadata=CAN_CONFLICT
    )

    def __attrs_post_init__(self) -> None:
        """Refuse a secret that is none of a rotation. Raises FieldValueError."""
        if self.secret is not None and not self.rotate_secret:
            raise FieldValueError("secret", "goes with `rotate_secret`")


@frozen
class TriggerDeletion(Call[None]):
    """A trigger to remove. A prompt of it that waits already is not taken back.

    Attributes:
        trigger_id: the trigger.
    """

    facts: ClassVar[Facts] = Facts(
        name="trigger/delete",
        doc="Remove a trigger.",
        scope="session:write",
        repeatable=True,
        audited="untrigger",
        wraps=Deleted,
    )
    trigger_id: str = attrs.field(validator=is_text, metadata=CAN_CONFLICT)


@frozen(kw_only=True)
class TriggersRequest(Call[TriggerPage]):
    """A page of the triggers.

    Attributes:
        session_id: return only those whose prompts this session gets.
        offset: number of triggers to skip.
        limit: the most triggers to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="trigger/list",
        doc="List the triggers with their newest deliveries, the oldest trigger first.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    session_id: str | None = attrs.field(default=None, validator=optional(is_text))
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])


def check(secret: str, scheme: Scheme) -> None:
    """Raise FieldValueError if a text is no secret of a scheme."""
    try:
        check_secret(secret, scheme)
    except BadSecretError as exc:
        raise FieldValueError("secret", str(exc)) from None
