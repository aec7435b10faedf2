"""Tools of a server that are not as the protocol has them."""

from pathlib import Path

import pytest

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.world import bare
from warren.transport.providers.tool_rules import OPENAI
from warren.transport.providers.tool_schemas import UnfitToolError, fitted


@pytest.mark.parametrize("flags", [(), ("modern",)])
async def test_a_tool_with_an_unsound_schema_leaves_the_others(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """All tools with a name are there; those whose schema takes no object cannot be offered to models."""
    async with ready(bare(tmp_path, "s", "unsound", *flags)) as pool:
        tools = {each.spec.name: each for each in pool.tools(None, ())}
        assert {*tools} == {"square", "hang", "die", "text", "nothing", "open", "any"}
        assert await tools["square"].call(n=3) == "9"
        assert tools["open"].spec.input_schema == {
            "type": "object",
            "properties": {"n": {}, "m": {"$ref": "#/$defs/M"}},
            "$defs": {"M": {}},
        }
        assert tools["any"].spec.input_schema == {"type": "object"}
        for name in ("text", "nothing"):
            with pytest.raises(UnfitToolError):
                fitted(tools[name].spec, OPENAI)
