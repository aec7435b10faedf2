"""Characters that a model's server cuts in two, as clients of each surface see them."""

import httpx
import trio

from tests.transport.acp.client import connect as acp
from tests.transport.acp.client import said
from tests.transport.clients import HOST, connect, gateway
from tests.transport.mcp.clients import connected as mcp
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, serve
from tests.transport.providers.calls import environ
from tests.transport.providers.dialects import DONE
from warren.conversation.messages import AssistantMessage
from warren.settings.config import Config
from warren.transport.embed import open_supervisor

WHOLE = "a😀b\ufffdc"


async def halves(_: Request, stream: trio.SocketStream) -> None:
    """Answer in pieces that end within a character, and with a half that nothing completes."""
    texts = (r"a\ud83d", r"\ude00b\ud83d", "c")
    pieces = [f'{{"choices": [{{"delta": {{"content": "{text}"}}}}]}}'.encode() for text in texts]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    sent = [chunk(b"data: " + piece + b"\n\n") for piece in pieces]
    await stream.send_all(HEAD + b"".join(sent) + chunk(event(end)) + chunk(event(DONE)) + END)


async def test_a_character_is_whole_on_every_surface() -> None:
    """Deltas, results and histories have the whole character, over WebSocket, HTTP, MCP, ACP and in the library."""
    async with (
        serve(halves) as url,
        open_supervisor(Config(model="gpt-local"), environ=environ(url)) as service,
        gateway(service) as port,
        connect(port) as client,
        httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=30) as http,
    ):
        created = await client.call("session/create", prompt="hi")
        session_id = created["session_id"]
        assert created["text"] == WHOLE
        deltas = [each["event"]["delta"] for each in client.events(session_id) if each["event"]["type"] == "text_delta"]
        assert "".join(deltas) == WHOLE
        assert (await http.post("/sessions", json={"prompt": "hi"})).json()["text"] == WHOLE
        async with await trio.open_tcp_stream(HOST, port) as stream:
            path = f"/sessions/{session_id}/events?after_seq=0"
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            told = b""
            while b"run_completed" not in told:
                told += bytes(await stream.receive_some())
        assert WHOLE.encode() in told
        (_, answer) = (await service.history(session_id)).messages
        assert isinstance(answer.message, AssistantMessage)
        assert answer.message.text == WHOLE
        async with mcp(service) as program:
            assert (await program.ask("warren_run", watch=True, prompt="hi"))["text"] == WHOLE
            assert WHOLE in "".join(program.told)
        async with acp(service) as editor:
            prompt = await editor.call("session/prompt", sessionId=await editor.new(), prompt=said("hi"))
            assert prompt.text() == WHOLE
