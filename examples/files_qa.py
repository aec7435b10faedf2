"""Questions about a folder of files: the model searches and reads them, and names the files that its answer is from."""

import tempfile
from pathlib import Path

import trio
from attrs import frozen

from warren import Agent, Budget, Config, Switches, ToolsConfig, open_supervisor
from warren.testing import ScriptedModel, call, say

HANDBOOK = {
    "holidays.md": "# Holidays\n\nEverybody has 28 days a year.\nUp to five of them can be kept until March.\n",
    "travel.md": "# Travel\n\nTrains are second class.\nA night in a hotel may cost 120 euros.\n",
}


@frozen
class Answer:
    """An answer, and the files that it is from."""

    text: str
    files: list[str]


# For a real model: model="claude-sonnet-4-5", with its key in ANTHROPIC_API_KEY.
MODEL = ScriptedModel(
    [
        call("search_files", pattern="hotel|room", glob="**/*.md", ignore_case=True),
        call("read_file", path="travel.md"),
        say("It may cost 120 euros.", data={"text": "It may cost 120 euros.", "files": ["travel.md"]}),
    ]
)
READER = Agent(
    "reader",
    "Answer from the files alone: search for several words that may stand there, then read what you have found. "
    "Say so if the answer is in none of them.",
    model=MODEL,
    tools=["search_files", "list_files", "read_file"],
    output_type=Answer,
    budget=Budget(max_steps=20),
)


async def ask(folder: Path, question: str) -> Answer:
    """Answer a question. The model can read what is in the folder, and nothing else; it cannot write.

    Raises FileNotFoundError if it names a file that is not there: such an answer is made up.
    """
    config = Config(tools=ToolsConfig(root=folder, writable=False), switches=Switches(builtins="enable"))
    async with open_supervisor(config, agents=[READER]) as service:
        answer = (await service.session(READER).turn(question)).output
    for name in answer.files:
        await trio.Path(folder, name).stat()
    return answer


async def main() -> None:
    """Ask about a handbook of two pages."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in HANDBOOK.items():
            await trio.Path(folder, name).write_text(text, encoding="utf-8")
        answer = await ask(Path(folder), "What may a hotel cost?")
        print(f"{answer.text} ({', '.join(answer.files)})")


if __name__ == "__main__":
    trio.run(main)
