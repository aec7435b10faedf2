"""A web chat with FastAPI: a conversation for each browser, whose answers come piece by piece.

Run it with `uvicorn web_chat_fastapi:app`, or as it is: then a client of its own asks two questions.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from warren import Agent, Budget, Config, tool
from warren.aio import Service, open_supervisor
from warren.errors import SessionBusyError, SessionNotFoundError
from warren.testing import ScriptedModel, call, say

BEDS = {"carrots": 12, "leeks": 3}


@tool
async def count(crop: str) -> int:
    """Count the plants of a crop in the garden."""
    await asyncio.sleep(0)  # a query of asyncpg, say: it runs on the loop of the application
    return BEDS.get(crop, 0)


# For a real model: model="claude-sonnet-4-5", with its key in ANTHROPIC_API_KEY.
MODEL = ScriptedModel(
    [
        [say("Let me count. "), call("count", crop="leeks")],
        say("You have three leeks."),
        say("Then plant some more!"),
    ]
)
GARDENER = Agent(
    "gardener",
    "Answer questions about the garden. Count, never guess.",
    model=MODEL,
    tools=[count],
    budget=Budget(max_steps=100),
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Open the runtime with the application, and close it with it."""
    async with open_supervisor(Config(), agents=[GARDENER]) as service:
        app.state.service = service
        yield


app = FastAPI(lifespan=lifespan)


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


Warren = Annotated[Service, Depends(service_of)]


@app.post("/chats")
async def begin(service: Warren) -> dict[str, str]:
    """Begin a conversation."""
    session = await service.session(GARDENER)
    return {"chat": session.id}


@app.post("/chats/{chat}")
async def ask(chat: str, request: Request, service: Warren) -> StreamingResponse:
    """Answer a question, piece by piece."""
    opened = service.stream_turn(chat, (await request.body()).decode())
    try:
        events = await opened.__aenter__()
    except SessionNotFoundError:
        raise HTTPException(404, "There is no such chat.") from None
    except SessionBusyError:
        raise HTTPException(409, "The last answer is not finished yet.") from None

    async def pieces() -> AsyncIterator[str]:
        try:
            async for text in events.texts():
                yield text
        finally:  # a browser that leaves ends the stream alone: the answer is kept, and `history` shows it
            await opened.__aexit__(None, None, None)

    return StreamingResponse(pieces(), media_type="text/plain; charset=utf-8")


@app.get("/chats/{chat}")
async def history(chat: str, service: Warren) -> list[str]:
    """Return what was said, for a browser that comes back."""
    page = await service.history(chat)
    return [type(each.message).__name__ for each in page.messages]


async def main() -> None:
    """Ask two questions as a browser would."""
    transport = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://garden") as browser:
        chat = (await browser.post("/chats")).json()["chat"]
        for question in ("How many leeks do I have?", "That is few."):
            async with browser.stream("POST", f"/chats/{chat}", content=question) as answer:
                print(" ".join((await answer.aread()).decode().split()))
        print(len((await browser.get(f"/chats/{chat}")).json()), "messages")
        print((await browser.post("/chats/none", content="Hello?")).status_code)


if __name__ == "__main__":
    asyncio.run(main())
