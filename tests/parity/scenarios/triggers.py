"""Prompts that come when a signed call comes."""

from typing import Final

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE
from warren.base.errors import ErrorCode
from warren.base.signatures import key_of

CALLS: Final = ("trigger/create", "trigger/list", "trigger/change", "trigger/delete")
NEW: Final = {"labels": {"by": "hook"}, "title": "News"}


@scenario(*CALLS, CREATE, codes=[ErrorCode.INVALID_PARAMS, ErrorCode.SESSION_NOT_FOUND])
async def trigger_that_is_made_changed_and_removed(stage: Stage) -> None:
    """It is as the service itself has it; its secret is in the answers that set one, and nowhere else."""
    service = stage.world.service
    session_id = str(stage.well(await stage.one.call(CREATE, prompt=None)).data["session_id"])
    asked = {"prompt": "look at {body}", "session_id": session_id, "scheme": "github", "secret": "swordfish"}
    made = stage.well(await stage.one.call("trigger/create", **asked), "trigger/create", state="active")
    assert made.data["secret"] == "swordfish"  # noqa: S105 - it is none
    (truth,) = (await service.triggers()).triggers
    assert (truth.session_id, truth.scheme, truth.secret) == (session_id, "github", None)
    trigger_id = truth.trigger_id
    assert made.data["trigger_id"] == trigger_id
    changed = await stage.one.call("trigger/change", trigger_id=trigger_id, paused=True, prompt="{event}")
    stage.well(changed, "trigger/change", state="paused", prompt="{event}")
    assert changed.data.get("secret") is None
    renewed = stage.well(
        await stage.one.call("trigger/change", trigger_id=trigger_id, rotate_secret=True), "trigger/change"
    )
    assert len(key_of(str(renewed.data["secret"]))) == 32
    stage.same(await stage.one.call("trigger/list"), "trigger/list", await service.triggers())
    stage.well(await stage.one.call("trigger/delete", trigger_id=trigger_id), "trigger/delete", deleted=True)
    for operation in ("trigger/delete", "trigger/change"):
        gone = await stage.one.call(operation, trigger_id=trigger_id)
        stage.refused(gone, ErrorCode.INVALID_PARAMS, path="$.trigger_id")
    assert (await service.triggers()).triggers == ()
    unknown = await stage.one.call("trigger/create", prompt="look", session_id="nobody")
    stage.refused(unknown, ErrorCode.SESSION_NOT_FOUND, session_id="nobody")


@scenario("trigger/create", "trigger/list")
async def trigger_with_a_new_session_each_time(stage: Stage) -> None:
    """The same key makes one trigger, and tells its secret again: its maker may have missed the answer."""
    asked = {"prompt": "news: {body}", "new_session": NEW, "idempotency_key": "hook"}
    first = stage.well(await stage.one.call("trigger/create", **asked), "trigger/create", session_id=None)
    again = stage.well(await stage.one.call("trigger/create", **asked), "trigger/create")
    assert {name: first.data[name] for name in ("trigger_id", "secret")} == {
        name: again.data[name] for name in ("trigger_id", "secret")
    }
    (truth,) = (await stage.world.service.triggers()).triggers
    assert truth.new_session is not None
    assert truth.new_session.title == "News"
    stage.same(await stage.one.call("trigger/list"), "trigger/list", await stage.world.service.triggers())
