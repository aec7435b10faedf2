"""Google's Agent Development Kit: a Runner with the DatabaseSessionService on SQLite, or the one in memory."""

import asyncio
import os
from contextlib import asynccontextmanager

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.models import BaseLlm, Gemini, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.genai import types

PACKAGES = ("google-adk", "google-genai", "SQLAlchemy", "aiosqlite", "pydantic")
BACKEND = "asyncio"
USER = {"app_name": "benchmark", "user_id": "user"}
PATIENCE = 60.0
"""Seconds to wait for a locked database; SQLite's own 5 end ten sessions at once with an error."""


class FakeModel(BaseLlm):
    """The fake model."""

    script: object

    async def generate_content_async(self, llm_request, stream=False):  # noqa: FBT002 - as it is overridden
        """Ask for the tool, or answer."""
        await asyncio.sleep(self.script.delay)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=self.script.tokens, candidates_token_count=self.script.tokens
        )
        yield LlmResponse(content=types.Content(role="model", parts=[self._part(llm_request)]), usage_metadata=usage)

    def _part(self, request):
        if self.script.tools and request.contents[-1].parts[0].function_response is None:
            return types.Part.from_function_call(name="look_up", args={"subject": self.script.argument})
        return types.Part(text=self.script.answer)


class Conversations:
    """Sessions by name."""

    def __init__(self, script, service):
        async def look_up(subject: str) -> str:
            """Look something up."""
            return script.found

        agent = LlmAgent(name="fake", model=_model(script), tools=[look_up] if script.tools else [])
        self.script, self.service = script, service
        self.runner = Runner(app_name=USER["app_name"], agent=agent, session_service=service)
        self.known, self.creating = set(), asyncio.Lock()

    async def turn(self, session):
        """Run a turn."""
        await self._create(session)
        message = types.Content(role="user", parts=[types.Part(text=self.script.prompt)])
        text = ""
        async for event in self.runner.run_async(user_id=USER["user_id"], session_id=session, new_message=message):
            if event.is_final_response():
                text = event.content.parts[0].text
        return text

    async def remember(self, session, messages):
        """Lengthen a session's history, event by event: there is no other way."""
        await self._create(session)
        stored = await self.service.get_session(**USER, session_id=session)
        for number in range(messages):
            role, author, text = (
                ("model", "fake", self.script.answer) if number % 2 else ("user", "user", self.script.prompt)
            )
            content = types.Content(role=role, parts=[types.Part(text=text)])
            await self.service.append_event(stored, Event(author=author, content=content))

    async def _create(self, session):
        if session not in self.known:
            async with self.creating:  # two at once find the database locked
                await self.service.create_session(**USER, session_id=session)
            self.known.add(session)


def _model(script):
    if script.url is None:
        return FakeModel(model="fake", script=script)
    # Its client is told both by the environment only.
    os.environ |= {"GOOGLE_GEMINI_BASE_URL": script.url, "GOOGLE_API_KEY": "none"}
    return Gemini(model="gemini-benchmark")


@asynccontextmanager
async def opened(script, folder):
    """Open the service of sessions."""
    if folder is None:
        yield Conversations(script, InMemorySessionService())
        return
    folder.mkdir(parents=True)
    url, patient = f"sqlite+aiosqlite:///{folder}/sessions.sqlite3", {"timeout": PATIENCE}
    async with DatabaseSessionService(url, connect_args=patient) as service:
        yield Conversations(script, service)
