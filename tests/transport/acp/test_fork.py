"""Forks by an ACP client: a session of its own in the client's folder, with the conversation so far."""

from pathlib import Path

from tests.support.models import says
from tests.support.runtime import open_runtime
from tests.transport.acp.client import connect


async def test_a_fork_goes_on_by_itself(tmp_path: Path) -> None:
    """The model sees what was said before; the other session is untouched, and the folder is that of the request."""
    async with open_runtime(says(["one"], ["two"]), store=tmp_path) as service, connect(service) as client:
        session_id = (await client.call("session/new", cwd="/a", mcpServers=[])).data["sessionId"]
        words = [{"type": "text", "text": "hello"}]
        await client.call("session/prompt", sessionId=session_id, prompt=words)
        fork = (await client.call("session/fork", sessionId=session_id, cwd="/b", mcpServers=[])).data
        assert fork["modes"]["currentModeId"] == "default"
        await client.call("session/prompt", sessionId=fork["sessionId"], prompt=words)
        assert (await service.read(fork["sessionId"])).state.message_count == 4
        assert (await service.read(fork["sessionId"])).state.labels == {"cwd": "/b"}
        assert (await service.read(session_id)).state.message_count == 2
