"""The text of a prompt's blocks for the model, and the prompts that are commands."""

from typing import Any

import pytest

from tests.support.fake_service import hit
from warren.base.errors import InvalidParamsError
from warren.calls.facade import Capabilities
from warren.conversation.attachments import File
from warren.settings.tool_config import McpServer
from warren.transport.acp import commands
from warren.transport.acp.content import prompt_of
from warren.transport.acp.servers import read_servers

LINK = {"type": "resource_link", "uri": "file:///a/b.py", "name": "b.py", "size": 3}
EMBEDDED = {"type": "resource", "resource": {"uri": 'file:///a"b', "text": "x = 1", "mimeType": "text/x-python"}}


def text(words: str) -> dict[str, Any]:
    """Make a block, with a field that the agent has no use for."""
    return {"type": "text", "text": words, "annotations": {"priority": 1}}


def test_a_link_stands_in_its_sentence() -> None:
    """Text and links follow each other as the user wrote them."""
    assert prompt_of([text("what does "), LINK, text(" do?")]).text == "what does [b.py](file:///a/b.py) do?"


def test_an_embedded_resource_is_on_lines_of_its_own() -> None:
    """Its text and its address reach the model, and neither runs into the words around it."""
    prompt = prompt_of([text("explain"), EMBEDDED, text("briefly")]).text
    assert prompt == "explain\n<resource uri='file:///a\"b'>\nx = 1\n</resource>\nbriefly"
    assert prompt_of([text("a\n"), EMBEDDED, EMBEDDED]).text.count("\n\n") == 0


def test_files_are_beside_the_text() -> None:
    """Images, sounds and binary resources keep their order, and the words around them are one text."""
    resource = {"uri": "file:///a/plan%20b.pdf?x=1", "blob": "JVBERi0=", "mimeType": "application/pdf"}
    blocks = [
        text("see "),
        {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
        {"type": "resource", "resource": resource},
        text("and hear"),
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
    ]
    prompt = prompt_of(blocks)
    assert prompt.text == "see and hear"
    assert prompt.files == (
        File(b"\x89PNG", media_type="image/png"),
        File(b"%PDF-", media_type="application/pdf", name="plan b.pdf"),
        File(b"RIFF", media_type="audio/wav"),
    )


def test_a_blank_name_or_type_is_none() -> None:
    """A client that says nothing about a file does not end the agent: the type is that of the bytes."""
    blocks = [
        text("see"),
        {"type": "image", "data": "iVBORw==", "mimeType": " "},
        *(
            {"type": "resource", "resource": {"uri": uri, "blob": "AAAA", "mimeType": ""}}
            for uri in ("file:///%20", "file:///", "http://[half")
        ),
    ]
    assert prompt_of(blocks).files == (File(b"\x89PNG"), *(3 * (File(bytes(3)),)))


@pytest.mark.parametrize(
    ("blocks", "path"),
    [
        ([], "$.prompt"),
        ([text(" \n")], "$.prompt"),
        ([text("a"), {"type": "text"}], "$.prompt[1].text"),
        ([{"type": "text", "text": 7}], "$.prompt[0].text"),
        ([{"type": "text", "text": "\ud800"}], "$.prompt[0].text"),
        ([{"type": "image", "data": "aaaa", "mimeType": "image/png"}], "$.prompt"),
        ([text("a"), {"type": "image", "data": "a!", "mimeType": "image/png"}], "$.prompt[1].data"),
        ([text("a"), {"type": "audio", "data": "aaaa"}], "$.prompt[1].mimeType"),
        ([{"type": "video", "data": "aaaa", "mimeType": "video/mp4"}], "$.prompt[0].type"),
        ([{"text": "a"}], "$.prompt[0].type"),
        ([{"type": ["text"]}], "$.prompt[0].type"),
        ([{"type": "resource_link", "uri": "file:///a"}], "$.prompt[0].name"),
        ([{"type": "resource"}], "$.prompt[0].resource"),
        ([{"type": "resource", "resource": {"uri": "file:///a"}}], "$.prompt[0].resource.text"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "blob": 7}}], "$.prompt[0].resource.blob"),
    ],
)
def test_a_bad_prompt_names_its_field(blocks: list[dict[str, Any]], path: str) -> None:
    """Whatever no model could be sent is refused with the place of it."""
    with pytest.raises(InvalidParamsError) as caught:
        prompt_of(blocks)
    assert caught.value.path == path


def test_mcp_servers_of_each_kind_are_taken() -> None:
    """A program and an address are told apart by `type`, and what else a client says is passed over."""
    program = {"name": "files", "command": "/bin/mcp", "args": ["-x"], "env": [{"name": "KEY", "value": "secret"}]}
    headers = [{"name": "Authorization", "value": "secret"}]
    address = {"type": "http", "name": "web", "url": "https://mcp.example", "headers": headers, "_meta": {"a": 1}}
    found = read_servers([program, address, {**program, "name": "more", "type": "stdio"}])
    assert found == (
        McpServer("files", "/bin/mcp", ["-x"], {"KEY": "secret"}, shared=False),
        McpServer("web", url="https://mcp.example", headers={"Authorization": "secret"}, shared=False),
        McpServer("more", "/bin/mcp", ["-x"], {"KEY": "secret"}, shared=False),
    )
    assert "secret" not in repr(found)


def test_an_mcp_server_may_be_called_anything() -> None:
    """Names for people become names for tools, and no two of them are the same."""
    names = ["My files (local)", "My files [local]", "\u00fc", "", "x" * 100, "x" * 100]
    found = read_servers([{"name": name, "command": "a", "args": [], "env": []} for name in names])
    assert [server.name for server in found] == [
        "My_files_local",
        "My_files_local_2",
        "server",
        "server_2",
        "x" * 64,
        f"{'x' * 62}_2",
    ]


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ({"name": "a", "args": [], "env": []}, "$.mcpServers[0].command"),
        ({"name": "a", "command": "a", "args": "-x", "env": []}, "$.mcpServers[0].args"),
        ({"name": "a", "command": "a", "args": [], "env": [{"name": "K"}]}, "$.mcpServers[0].env[0].value"),
        ({"type": "http", "name": "a", "headers": []}, "$.mcpServers[0].url"),
        ({"type": "http", "name": "a", "url": "u", "headers": [{"name": 1}]}, "$.mcpServers[0].headers[0].name"),
        ({"type": "http", "name": "a", "url": "ftp://there", "headers": []}, "$.mcpServers[0].url"),
        ({"name": "a", "command": " ", "args": [], "env": []}, "$.mcpServers[0].command"),
        ({"type": "sse", "name": "a", "url": "https://mcp.example", "headers": []}, "$.mcpServers[0].type"),
        ({"type": "smoke", "name": "a"}, "$.mcpServers[0].type"),
    ],
)
def test_a_bad_mcp_server_names_its_field(server: dict[str, Any], path: str) -> None:
    """A server that could not be started later is refused now."""
    with pytest.raises(InvalidParamsError) as caught:
        read_servers([server])
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("prompt", "command"),
    [
        ("/help", commands.SlashCommand("help", "")),
        ("  /compact keep\nthe names ", commands.SlashCommand("compact", "keep\nthe names")),
        ("/memory blue doors", commands.SlashCommand("memory", "blue doors")),
        ("/helpful", None),
        ("/etc/hosts is wrong", None),
        ("what is /help", None),
    ],
)
def test_a_command_is_one_only_at_the_beginning(prompt: str, command: commands.SlashCommand | None) -> None:
    """Prompts that merely look like a command go to the model."""
    assert commands.parse(prompt) == command


def test_a_command_that_cannot_be_had_says_so() -> None:
    """The list of commands tells how to turn on what is off."""
    off = commands.advertised(Capabilities(session_store=True, session_compaction=False, memory_store=False))
    assert ["off" in command["description"] for command in off] == [True, True, False]
    on = commands.help_text(Capabilities(session_store=True, session_compaction=True, memory_store=True))
    assert "off" not in on
    assert all(f"/{command['name']}" in on for command in off)


def test_what_is_remembered_is_told_in_single_lines() -> None:
    """A hit of many lines cannot be taken for many hits, nor flood the client."""
    hits = [hit("a\n- b " * 200, 0.9, "s1", 3), hit("c", 0.8, "s1", 4)]
    lines = commands.memory_text(hits).splitlines()
    assert [line[:17] for line in lines] == ["- (0.90, turn 3) ", "- (0.80, turn 4) "]
    assert len(lines[0]) < 400
