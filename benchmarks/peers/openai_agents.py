"""OpenAI Agents SDK: a Runner with an SQLiteSession; in memory the history is the list that the caller hands back."""

import asyncio
from contextlib import asynccontextmanager

from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.usage import Usage
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

PACKAGES = ("openai-agents", "openai", "pydantic")
BACKEND = "asyncio"

set_tracing_disabled(True)


class FakeModel(Model):
    """The fake model."""

    def __init__(self, script):
        self.script = script

    async def get_response(self, system_instructions, input, *_, **__):
        """Ask for the tool, or answer."""
        await asyncio.sleep(self.script.delay)
        return ModelResponse(
            [self._output(input)], Usage(1, self.script.tokens, output_tokens=self.script.tokens), None
        )

    def _output(self, messages):
        if self.script.tools and messages[-1].get("type") != "function_call_output":
            arguments = f'{{"subject": "{self.script.argument}"}}'
            name = f"call-{len(messages)}"
            return ResponseFunctionToolCall(arguments=arguments, call_id=name, name="look_up", type="function_call")
        text = ResponseOutputText(text=self.script.answer, type="output_text", annotations=[])
        return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")

    def stream_response(self, *_, **__):
        """Nobody asks for it."""
        raise NotImplementedError


class Conversations:
    """Sessions by name."""

    def __init__(self, script, folder):
        @function_tool
        async def look_up(subject: str) -> str:
            """Look something up."""
            return script.found

        self.script, self.folder = script, folder
        self.agent = Agent("fake", model=_model(script), tools=[look_up] if script.tools else [])
        self.config = RunConfig(tracing_disabled=True)
        self.sessions, self.histories = {}, {}

    async def turn(self, session):
        """Run a turn."""
        if self.folder is not None:
            stored = self._stored(session)
            result = await Runner.run(self.agent, self.script.prompt, session=stored, run_config=self.config)
            return result.final_output
        said = [*self.histories.get(session, ()), {"role": "user", "content": self.script.prompt}]
        result = await Runner.run(self.agent, said, run_config=self.config)
        self.histories[session] = result.to_input_list()
        return result.final_output

    async def remember(self, session, messages):
        """Lengthen a session's history, all at once."""
        pair = [
            {"role": "user", "content": self.script.prompt},
            {"role": "assistant", "content": self.script.answer},
        ]
        await self._stored(session).add_items(pair * (messages // 2))

    def _stored(self, session):
        if session not in self.sessions:
            self.sessions[session] = SQLiteSession(session, self.folder / "sessions.sqlite3")
        return self.sessions[session]


def _model(script):
    if script.url is None:
        return FakeModel(script)
    return OpenAIChatCompletionsModel("gpt-benchmark", _client(script))


def _client(script):
    return AsyncOpenAI(base_url=f"{script.url}/v1", api_key="none", timeout=script.patience)


@asynccontextmanager
async def opened(script, folder):
    """Make a folder for the sessions."""
    if folder is not None:
        folder.mkdir(parents=True)
    yield Conversations(script, folder)
