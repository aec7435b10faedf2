"""Prompts that are due at times of their own."""

from typing import Final

import trio

from tests.parity.stage import Stage, scenario
from tests.parity.surface import CREATE
from tests.parity.world import Setting
from warren.base.errors import ErrorCode

CALLS: Final = ("schedule/create", "schedule/list", "schedule/change", "schedule/delete")
NEW: Final = {"labels": {"by": "clock"}, "title": "News"}


@scenario(
    *CALLS, CREATE, codes=[ErrorCode.INVALID_PARAMS, ErrorCode.SESSION_NOT_FOUND], setting=Setting(({"text": "wet"},))
)
async def schedule_that_is_made_changed_and_removed(stage: Stage) -> None:
    """It is as the service itself has it; once it is due, its session has had its prompt."""
    service = stage.world.service
    session_id = str(stage.well(await stage.one.call(CREATE, prompt=None)).data["session_id"])
    times = {"cron": "30 9 * * mon-fri", "zone": "Europe/Berlin", "paused": True}
    asked = {"prompt": "water", "session_id": session_id, **times}
    made = await stage.one.call("schedule/create", **asked)
    (truth,) = (await service.schedules()).schedules
    stage.same(made, "schedule/create", truth)
    assert (truth.state, truth.session_id, truth.next_at, truth.zone) == ("paused", session_id, None, "Europe/Berlin")
    schedule_id = truth.schedule_id
    changed = await stage.one.call("schedule/change", schedule_id=schedule_id, every="1s", paused=False)
    stage.well(changed, "schedule/change", state="active", every="1s", cron=None)
    while not (await service.history(session_id)).messages:  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.05)
    page = await service.schedules(session_id=session_id)
    assert page.schedules[0].runs[-1].state == "fired"
    paused = await stage.one.call("schedule/change", schedule_id=schedule_id, paused=True)
    stage.well(paused, "schedule/change", state="paused", next_at=None)
    stage.same(await stage.one.call("schedule/list"), "schedule/list", await service.schedules())
    stage.well(await stage.one.call("schedule/delete", schedule_id=schedule_id), "schedule/delete", deleted=True)
    for operation in ("schedule/delete", "schedule/change"):
        gone = await stage.one.call(operation, schedule_id=schedule_id)
        stage.refused(gone, ErrorCode.INVALID_PARAMS, path="$.schedule_id")
    assert (await service.schedules()).schedules == ()
    unknown = await stage.one.call("schedule/create", prompt="water", every="1h", session_id="nobody")
    stage.refused(unknown, ErrorCode.SESSION_NOT_FOUND, session_id="nobody")


@scenario("schedule/create", "schedule/list", setting=Setting(({"text": "none"},)))
async def schedule_with_a_new_session_each_time(stage: Stage) -> None:
    """The session has the options of the schedule; the same key makes one schedule."""
    asked = {"prompt": "news?", "every": "1s", "new_session": NEW, "idempotency_key": "daily"}
    first = stage.well(await stage.one.call("schedule/create", **asked), "schedule/create", every="1s", session_id=None)
    again = stage.well(await stage.one.call("schedule/create", **asked), "schedule/create")
    assert first.data["schedule_id"] == again.data["schedule_id"]
    while not (found := (await stage.world.service.list(labels={"by": "clock"})).sessions):  # noqa: ASYNC110 - as above
        await trio.sleep(0.05)
    assert found[-1].title == "News"
    await stage.world.service.change_schedule(str(first.data["schedule_id"]), paused=True)
    before, truth = None, await stage.world.service.schedules()
    with trio.move_on_after(3):  # a run may be on its way; at a node that takes no work it waits for the other one
        while before != truth or not all(run.ended for run in truth.schedules[0].runs):
            await trio.sleep(0.3)
            before, truth = truth, await stage.world.service.schedules()
    stage.same(await stage.one.call("schedule/list"), "schedule/list", truth)
