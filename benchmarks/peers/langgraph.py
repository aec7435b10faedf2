"""LangGraph: a graph of a model and its tools, with the asynchronous SQLite saver, or the one in memory."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient

PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite", "langchain-core", "langchain-openai", "openai", "aiosqlite")
BACKEND = "asyncio"


class FakeModel(BaseChatModel):
    """The fake model."""

    script: Any

    @property
    def _llm_type(self):
        return "fake"

    def _generate(self, messages, stop=None, run_manager=None, **_):
        raise NotImplementedError

    async def _agenerate(self, messages, stop=None, run_manager=None, **_):
        await asyncio.sleep(self.script.delay)
        return ChatResult(generations=[ChatGeneration(message=self._message(messages))])

    def _message(self, messages):
        tokens = self.script.tokens
        usage = {"input_tokens": tokens, "output_tokens": tokens, "total_tokens": 2 * tokens}
        if self.script.tools and not isinstance(messages[-1], ToolMessage):
            call = {"id": f"call-{len(messages)}", "name": "look_up", "args": {"subject": self.script.argument}}
            return AIMessage("", tool_calls=[call], usage_metadata=usage)
        return AIMessage(self.script.answer, usage_metadata=usage)


class Conversations:
    """Sessions by name."""

    def __init__(self, script, saver):
        self.script = script
        self.graph = self._built(_model(script)).compile(checkpointer=saver)

    async def turn(self, session):
        """Run a turn."""
        result = await self.graph.ainvoke({"messages": [HumanMessage(self.script.prompt)]}, _config(session))
        return result["messages"][-1].content

    async def remember(self, session, messages):
        """Lengthen a session's history, all at once."""
        said = [
            message
            for _ in range(messages // 2)
            for message in (HumanMessage(self.script.prompt), AIMessage(self.script.answer))
        ]
        await self.graph.aupdate_state(_config(session), {"messages": said}, as_node="model")

    def _built(self, model):
        script = self.script

        @tool
        async def look_up(subject: str) -> str:
            """Look something up."""
            return script.found

        async def call(state):
            return {"messages": await model.ainvoke(state["messages"])}

        graph = StateGraph(MessagesState)
        graph.add_node("model", call)
        graph.add_edge(START, "model")
        if script.tools:
            graph.add_node("tools", ToolNode([look_up]))
            graph.add_conditional_edges("model", tools_condition)
            graph.add_edge("tools", "model")
        return graph


def _model(script):
    if script.url is None:
        return FakeModel(script=script)
    client = DefaultAsyncHttpxClient(timeout=script.patience)  # its own one outlives the event loop
    address = f"{script.url}/v1"
    return ChatOpenAI(
        model="gpt-benchmark", base_url=address, api_key="none", timeout=script.patience, http_async_client=client
    )


def _config(session):
    return {"configurable": {"thread_id": session}}


@asynccontextmanager
async def opened(script, folder):
    """Open the saver."""
    if folder is None:
        yield Conversations(script, InMemorySaver())
        return
    folder.mkdir(parents=True)
    async with AsyncSqliteSaver.from_conn_string(f"{folder}/sessions.sqlite3") as saver:
        yield Conversations(script, saver)
