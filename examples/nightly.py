"""A report every night: a schedule that begins a session of its own each time, and outlives the program."""

import tempfile
from pathlib import Path

import trio

import warren
from warren import Agent, Config, RuntimeService, SessionTemplate, StoreConfig, open_supervisor
from warren.messages import AssistantMessage
from warren.testing import ScriptedModel, call, say


@warren.tool
async def sales(day: str) -> str:
    """Look up the sales of a day, such as yesterday."""
    return f"{day}: 12 lamps, 3 chairs"


REPORTER = Agent(
    "reporter",
    "Write a report of two sentences.",
    model=ScriptedModel([call("sales", day="yesterday"), say("Lamps go well. Chairs do not.")]),
    tools=[sales],
)


async def newest(service: RuntimeService) -> str:
    """Wait for the next report, and return it."""
    async with service.watch(labels={"by": "clock"}) as changes:
        async for change in changes:
            for summary in change.sessions:
                if summary.last_outcome == "completed":
                    history = await service.history(summary.session_id)
                    answer = history.messages[-1].message
                    assert isinstance(answer, AssistantMessage)
                    return answer.text
    raise RuntimeError("the runtime has ended")


async def main() -> None:
    """Make the schedule, and one that is due every second, whose first report is shown."""
    report = SessionTemplate(agent="reporter", labels={"by": "clock"})
    with tempfile.TemporaryDirectory() as folder:
        async with open_supervisor(Config(store=StoreConfig(Path(folder))), agents=[REPORTER]) as service:
            nightly = await service.create_schedule(
                "Report on yesterday.", cron="0 2 * * *", zone="Africa/Lagos", new_session=report
            )
            print(nightly.state, f"{nightly.next_at:%H:%M}" if nightly.next_at else "")
            soon = await service.create_schedule("Report on yesterday.", every="1s", new_session=report)
            print(await newest(service))
            await service.delete_schedule(soon.schedule_id)


if __name__ == "__main__":
    trio.run(main)
