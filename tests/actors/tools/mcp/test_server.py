"""The settings of a server, the wait for it, and the names of its tools."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.tools.mcp.world import bare
from warren.actors.tools.mcp.naming import LONGEST, names
from warren.actors.tools.mcp.process import environment
from warren.base.fields import FieldValueError
from warren.settings.tool_config import NAME, McpServer


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "a b", "command": "x"}, "name"),
        ({"name": "", "command": "x"}, "name"),
        ({"name": "a"}, "command"),
        ({"name": "a", "command": " "}, "command"),
        ({"name": "a", "command": "x", "url": "http://127.0.0.1"}, "url"),
        ({"name": "a", "url": "ftp://127.0.0.1"}, "url"),
        ({"name": "a", "url": "http://[nonsense"}, "url"),
        ({"name": "a", "url": "http://127.0.0.1", "args": ["x"]}, "args"),
        ({"name": "a", "url": "http://127.0.0.1", "env": {"A": "x"}}, "env"),
        ({"name": "a", "command": "x", "headers": {"A": "x"}}, "headers"),
        ({"name": "a", "command": "x", "args": "y"}, "args"),
        ({"name": "a", "command": "x", "connect_timeout": 0}, "connect_timeout"),
        ({"name": "a", "command": "x", "call_timeout": -1}, "call_timeout"),
        ({"name": "a", "command": "x", "restart": "retry"}, "restart"),
        ({"name": "a", "command": "x", "tool_restart": {"put": "retry"}}, "tool_restart.put"),
        ({"name": "a", "command": "x", "tool_restart": {"put": None}}, "tool_restart.put"),
        ({"name": "a", "command": "x", "tool_restart": {"": "ask"}}, "tool_restart"),
        ({"name": "a", "command": "x", "tool_restart": "ask"}, "tool_restart"),
    ],
)
def test_a_bad_setting_is_named(fields: dict[str, Any], field: str) -> None:
    """Whatever a server cannot be is refused with the name of the field."""
    with pytest.raises(FieldValueError) as caught:
        McpServer(**fields)
    assert caught.value.field == field


def test_secrets_are_not_shown() -> None:
    """Neither the variables nor the headers of a server get into a log by way of its repr."""
    assert "secret" not in repr(McpServer("a", command="x", env={"KEY": "secret"}))
    assert "secret" not in repr(McpServer("a", url="http://127.0.0.1", headers={"Authorization": "secret"}))


def test_a_server_sees_a_few_variables_and_those_it_is_given() -> None:
    """Keys of ours do not reach it, unless they are given to it."""
    ours = {"PATH": "/bin", "OPENAI_API_KEY": "ours", "HOME": "/root"}
    assert environment({"KEY": "its", "HOME": "/other"}, ours) == {"PATH": "/bin", "HOME": "/other", "KEY": "its"}


def test_a_clash_is_told_apart_by_the_servers() -> None:
    """Tools of one name get those of their servers in front, as does one whose name is taken; others do not."""
    offers = [("files", "search"), ("web", "search"), ("web", "fetch"), ("web", "shell")]
    assert names(offers, {"shell"}) == ["files_search", "web_search", "fetch", "web_shell"]


def test_names_fit_providers() -> None:
    """Characters that providers refuse are replaced, long names cut, and what that makes equal is kept apart."""
    found = names([("s", "a.b"), ("s", "a/b"), ("s", "é" * 3), ("s", "x" * 100), ("s", "x" * 101)])
    assert found[2] == "___"
    assert found[0] == "s_a_b"
    assert found[3][:50] == found[4][:50] == "x" * 50
    assert len(set(found)) == len(found)


OFFERS = st.lists(st.tuples(st.sampled_from(["a", "b", "a_b"]), st.text(max_size=80)), max_size=12)


@given(OFFERS, st.sets(st.text(alphabet="ab_", max_size=4)))
def test_names_are_always_different_and_fit(offers: list[tuple[str, str]], taken: set[str]) -> None:
    """Whatever servers call their tools, models see names that providers take, each once, and always the same."""
    found = names(offers, taken)
    assert len(found) == len(offers) == len({*found} - taken)
    assert all(NAME.fullmatch(name) and len(name) <= LONGEST for name in found)
    assert names(offers, taken) == found


def test_equal_servers_are_equal(tmp_path: Any) -> None:
    """Two sessions that ask for the same server are seen to."""
    assert bare(tmp_path, "a") == bare(tmp_path, "a") != bare(tmp_path, "a", "noisy")
