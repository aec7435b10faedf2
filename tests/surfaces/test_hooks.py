"""No request can bring hooks: they run with the rights of the operator, who names them in the settings."""

import pytest

from tests.support.fake_service import FakeService
from tests.transport.mcp.clients import connected
from tests.transport.rest.clients import problem, rest
from tests.transport.stdio.client import near

NAMES = ("hooks", "hook_commands", "hooks_files")
HOOKS = {
    "hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "touch /tmp/owned"}]}]},
    "hook_commands": [{"event": "PreToolUse", "command": "touch /tmp/owned"}],
    "hooks_files": ["settings.json"],
}


@pytest.mark.parametrize("name", NAMES)
async def test_no_request_brings_hooks(name: str) -> None:
    """Over JSON-RPC, REST and MCP a session or a turn with hooks is refused, and the field is named."""
    service = FakeService()
    given = {"prompt": "x", name: HOOKS[name]}
    async with near(service) as client:
        made = await client.call("session/create", prompt="x")
        for method in ("session/create", "turn/start"):
            about = {"session_id": made["session_id"]} if method == "turn/start" else {}
            error = await client.error(method, **about, **given)
            assert error["message"] == f"$.{name}: is not a known field"
    async with rest(service) as http:
        for place in ("/sessions", f"/sessions/{made['session_id']}/messages"):
            assert problem(await http.post(place, json=given)) == (422, "INVALID_PARAMS", f"$.{name}")
    async with connected(service) as program:
        assert name in str(await program.fail("warren_run", **given))
    assert len(service.called("create_session")) == 1
    assert not service.called("start_turn")
