"""Tools in each build: they work with their extra, and name it without."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.builds.build import EXTRAS
from warren import Config, open_supervisor
from warren.base.errors import InvalidParamsError
from warren.settings.tool_config import McpServer, ToolsConfig

NEEDED: Final[dict[str, Callable[[Path], ToolsConfig]]] = {
    "tools": lambda folder: ToolsConfig(root=folder),
    "skills": lambda folder: ToolsConfig(skills=(folder,)),
    "mcp": lambda _: ToolsConfig(mcp_servers=(McpServer("none", command="/nowhere/at/all"),)),
}


@pytest.mark.parametrize("extra", NEEDED)
async def test_tools_need_their_extra(tmp_path: Path, extra: str) -> None:
    """A runtime is there with it; without it the error names what to install."""
    config = Config(tools=NEEDED[extra](tmp_path))
    if extra in EXTRAS:
        async with open_supervisor(config, environ={}) as service:
            assert (await service.create_session("hello")).text == "hello"
        return
    with pytest.raises(InvalidParamsError, match=rf"pip install 'warren\[{extra}\]'"):
        async with open_supervisor(config, environ={}):
            raise AssertionError("it started")


async def test_what_needs_none_is_always_there() -> None:
    """The web and the clock, and skills where nobody asks for any, need no extra."""
    async with open_supervisor(Config(tools=ToolsConfig(fetch=True)), environ={}) as service:
        assert service.capabilities().tools["builtins"] == "off"
