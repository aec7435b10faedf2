"""Addresses to which what happens is posted."""

from typing import Final

import trio

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE
from tests.parity.world import Setting
from warren.base.errors import ErrorCode

CALLS: Final = ("webhook/create", "webhook/list", "webhook/change", "webhook/delete", "delivery/list")
ELSEWHERE: Final = "https://example.org/hook"


@scenario(
    *CALLS,
    "delivery/resend",
    CREATE,
    codes=[ErrorCode.INVALID_PARAMS, ErrorCode.SESSION_NOT_FOUND],
    setting=Setting(({"text": "wet"},)),
)
async def webhook_that_is_made_changed_and_removed(stage: Stage) -> None:
    """It is as the service itself has it, but for the secret, which the one that makes it gets alone."""
    service = stage.world.service
    asked = {"url": ELSEWHERE, "events": ["turn.completed"], "labels": {"by": "x"}, "paused": True}
    made = stage.well(await stage.one.call("webhook/create", **asked, idempotency_key="k"), "webhook/create")
    assert str(made.data["secret"]).startswith("whsec_")
    again = stage.well(await stage.one.call("webhook/create", **asked, idempotency_key="k"), "webhook/create")
    assert made.data == again.data
    (truth,) = (await service.webhooks()).webhooks
    assert (truth.state, truth.url, truth.events, truth.secret) == ("paused", ELSEWHERE, ("turn.completed",), None)
    stage.same(await stage.one.call("webhook/list"), "webhook/list", await service.webhooks())
    webhook_id = truth.webhook_id
    changed = await stage.one.call("webhook/change", webhook_id=webhook_id, labels={}, paused=False)
    stage.well(changed, "webhook/change", state="active", labels={}, secret=None)
    rotated = stage.well(await stage.one.call("webhook/change", webhook_id=webhook_id, rotate_secret=True))
    assert rotated.data["secret"] not in (None, made.data["secret"])
    await stage.one.call("webhook/change", webhook_id=webhook_id, paused=True)
    page = await service.deliveries(webhook_id)
    stage.same(await stage.one.call("delivery/list", webhook_id=webhook_id), "delivery/list", page)
    none = await stage.one.call("delivery/resend", webhook_id=webhook_id)
    stage.well(none, "delivery/resend", resent=0)
    unknown = await stage.one.call("delivery/resend", webhook_id=webhook_id, delivery_id="none")
    stage.refused(unknown, ErrorCode.INVALID_PARAMS, path="$.delivery_id")
    stage.well(await stage.one.call("webhook/delete", webhook_id=webhook_id), "webhook/delete", deleted=True)
    for operation in ("webhook/delete", "webhook/change", "delivery/list", "delivery/resend"):
        gone = await stage.one.call(operation, webhook_id=webhook_id)
        stage.refused(gone, ErrorCode.INVALID_PARAMS, path="$.webhook_id")
    nobody = await stage.one.call("webhook/create", url=ELSEWHERE, session_id="nobody")
    stage.refused(nobody, ErrorCode.SESSION_NOT_FOUND, session_id="nobody")


@scenario("webhook/create", "delivery/list", CREATE, setting=Setting(({"text": "wet"}, {"text": "dry"})))
async def webhook_whose_address_is_refused_at_each_attempt(stage: Stage) -> None:
    """What happened is listed with the reason for which it could not be posted, and with its next attempt."""
    service = stage.world.service
    made = stage.well(await stage.one.call("webhook/create", url="https://localhost/hook"), "webhook/create")
    webhook_id = str(made.data["webhook_id"])
    session_id = str(stage.well(await stage.one.call(CREATE, prompt="is it wet?")).data["session_id"])
    while not (await service.deliveries(webhook_id)).deliveries[0].attempts:  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.05)
    await service.change_webhook(webhook_id, paused=True)
    page = await service.deliveries(webhook_id, state="pending")
    (one,) = page.deliveries
    assert (one.type, one.session_id, one.status) == ("turn.completed", session_id, None)
    assert "not a public address" in str(one.problem)
    listed = await stage.one.call("delivery/list", webhook_id=webhook_id, state="pending")
    stage.same(listed, "delivery/list", page)
