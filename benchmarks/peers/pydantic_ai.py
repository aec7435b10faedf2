"""Pydantic AI: the caller keeps the history, as a list in memory, or as its documentation's chat application does.

That one adds the JSON of each turn's new messages as a row to SQLite, on a thread of its own, and reads all rows of the
conversation before each turn. Its single conversation is given a name here, and the name an index.
"""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

PACKAGES = ("pydantic-ai-slim", "openai", "pydantic")
BACKEND = "asyncio"


class FakeModel(Model):
    """The fake model."""

    model_name = "fake"
    system = "fake"

    def __init__(self, script):
        super().__init__()
        self.script = script

    async def request(self, messages, model_settings, model_request_parameters):
        """Ask for the tool, or answer."""
        await asyncio.sleep(self.script.delay)
        usage = RequestUsage(input_tokens=self.script.tokens, output_tokens=self.script.tokens)
        return ModelResponse([self._part(messages)], usage=usage, model_name="fake")

    def _part(self, messages):
        if self.script.tools and not isinstance(messages[-1].parts[-1], ToolReturnPart):
            return ToolCallPart("look_up", {"subject": self.script.argument}, f"call-{len(messages)}")
        return TextPart(self.script.answer)


class Database:
    """The chat application's."""

    def __init__(self, path):
        self.executor = ThreadPoolExecutor(1)
        self.db = self.executor.submit(sqlite3.connect, path).result()
        self.executor.submit(self._create).result()

    async def messages(self, session):
        """Return a conversation's messages."""
        return await self._run(self._read, session)

    async def add(self, session, messages):
        """Add the JSON of messages to a conversation."""
        await self._run(self._add, session, messages)

    async def _run(self, function, *args):
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *args)

    def _create(self):
        self.db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, message_list TEXT)")
        self.db.execute("CREATE INDEX by_session ON messages (session, id)")

    def _read(self, session):
        rows = self.db.execute("SELECT message_list FROM messages WHERE session = ? ORDER BY id", (session,))
        return [message for (row,) in rows.fetchall() for message in ModelMessagesTypeAdapter.validate_json(row)]

    def _add(self, session, messages):
        self.db.execute("INSERT INTO messages (session, message_list) VALUES (?, ?)", (session, messages))
        self.db.commit()


class Conversations:
    """Sessions by name."""

    def __init__(self, script, database):
        self.script, self.database, self.histories = script, database, {}
        self.agent = Agent(_model(script))
        if script.tools:

            @self.agent.tool_plain
            async def look_up(subject: str) -> str:
                """Look something up."""
                return script.found

    async def turn(self, session):
        """Run a turn."""
        if self.database is None:
            result = await self.agent.run(self.script.prompt, message_history=self.histories.get(session))
            self.histories[session] = result.all_messages()
        else:
            history = await self.database.messages(session)
            result = await self.agent.run(self.script.prompt, message_history=history)
            await self.database.add(session, result.new_messages_json())
        return result.output

    async def remember(self, session, messages):
        """Lengthen a session's history, a row a turn."""
        turn = [
            ModelRequest([UserPromptPart(self.script.prompt)]),
            ModelResponse([TextPart(self.script.answer)], model_name="fake"),
        ]
        for _ in range(messages // 2):
            await self.database.add(session, ModelMessagesTypeAdapter.dump_json(turn))


def _model(script):
    if script.url is None:
        return FakeModel(script)
    client = AsyncOpenAI(base_url=f"{script.url}/v1", api_key="none", timeout=script.patience)
    return OpenAIChatModel("gpt-benchmark", provider=OpenAIProvider(openai_client=client))


@asynccontextmanager
async def opened(script, folder):
    """Open the database."""
    if folder is None:
        yield Conversations(script, None)
        return
    folder.mkdir(parents=True)
    yield Conversations(script, Database(folder / "sessions.sqlite3"))
