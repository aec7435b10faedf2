"""Every page's programs and commands work as they are printed, and its links lead somewhere."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from tests.conftest import ROOT
from tests.docs.snippets import DOCS, blocks, commands, fits, reading
from warren.transport.cli.app import cli
from warren.transport.cli.groups import commands_of
from warren.transport.cli.settings.file import read_config

README: Final = ROOT / "README.md"
ALL: Final = sorted([*DOCS.rglob("*.md"), README, ROOT / "CONTRIBUTING.md"])
READ_HERE: Final = (
    *(
        "agents",
        "asyncio",
        "capability-matrix",
        "cli",
        "client",
        "console",
        "containers",
        "calls-that-wait",
        "children",
        "durable-turns",
        "embedding",
        "errors",
        "examples",
        "glossary",
        "guards",
        "hooks",
        "hooks-from-settings",
        "inbox",
        "index",
        "load",
        "models",
    ),
    *(
        "mcp",
        "mcp-client",
        "metrics",
        "peers",
        "providers",
        "scale",
        "schedules",
        "webhooks",
        "scripted",
        "security",
        "stdio",
        "streams",
        "structured-output",
        "testing",
        "tools",
        "traces",
        "triggers",
        "websocket",
        "workspace",
    ),
)
READ_ELSEWHERE: Final = {
    "acp": "tests/transport/acp/test_docs.py",
    "architecture": "tests/docs/test_architecture.py",
    "nodes": "tests/docs/test_nodes.py",
    "operations": "tests/docs/test_operations.py",
    "performance": "tests/benchmarks/test_page.py",
    "postgres": "tests/docs/test_postgres.py",
    "protocol": "tests/docs/test_protocol.py",
    "projections": "tests/storage/projection",
    "proxies": "tests/surfaces/test_proxies.py",
    "rest": "tests/docs/test_rest.py",
    "settings": "tests/docs/test_settings.py",
}
LINK: Final = re.compile(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)")


@pytest.mark.parametrize("name", READ_HERE)
def test_a_page_can_be_pasted(name: str, tmp_path: Path) -> None:
    """In an empty folder, from its first block to its last, each output is what the page shows."""
    page = DOCS / f"{name}.md"
    with reading(tmp_path) as reader:
        ran = reader.read(page)
    assert ran == sum(
        len(commands(block.text)) if block.language == "console" else block.language == "python"
        for block in blocks(page)
    )


def test_every_page_is_read_by_some_test() -> None:
    """A new page is on one of the two lists, and whoever else reads it is there."""
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert pages <= {*READ_HERE, *READ_ELSEWHERE}
    assert all((ROOT / READ_ELSEWHERE[name]).exists() for name in pages & set(READ_ELSEWHERE))


def test_the_example_of_peers_is_the_one_on_the_page() -> None:
    """`examples/peers.py` and the page on peers show the same program."""
    (program,) = [block.text for block in blocks(DOCS / "peers.md") if block.language == "python"]
    assert program == (ROOT / "examples" / "peers.py").read_text(encoding="utf-8")


def test_the_index_leads_to_every_page() -> None:
    """Whoever begins there finds all of them, and the README leads there too."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert all(f"({page.name}" in index for page in DOCS.glob("*.md") if page.stem != "index")
    assert "docs/" in README.read_text(encoding="utf-8")


def test_the_list_of_decisions_leads_to_every_record() -> None:
    """And each record has its four parts, in about ten lines."""
    listed = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    records = [page for page in (DOCS / "decisions").glob("*.md") if page.stem != "index"]
    assert sorted(re.findall(r"\((.*?\.md)\)", listed)) == sorted(page.name for page in records)
    for page in records:
        text = page.read_text(encoding="utf-8")
        parts = re.findall(r"^\*\*([\w ]+)\.\*\*", text, flags=re.MULTILINE)
        assert parts == ["Situation", "Decision", "Consequences", "Not chosen"], page
        assert len(text.splitlines()) < 25, page


def test_the_page_on_the_command_line_has_every_command() -> None:
    """And no other."""
    listed = re.findall(r"`warren ([a-z ]+)`", (DOCS / "cli.md").read_text(encoding="utf-8").partition("\n## ")[0])
    assert set(listed) == {" ".join(path) for path in paths(cli)}


def paths(group: click.Group) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that does something."""
    for name, command in commands_of(group).items():
        if isinstance(command, click.Group):
            yield from ((name, *below) for below in paths(command))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (name,)


def test_the_reader_sees_what_is_wrong(tmp_path: Path) -> None:
    """A page that shows something else than what comes is found."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one two\none …\n$ echo one\ntwo\n```\n", encoding="utf-8")
    with reading(tmp_path) as reader, pytest.raises(AssertionError, match="echo one\none"):
        reader.read(page)
    assert not fits("one\n…\nfour", "one two three")


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that is in it."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "code", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in LINK.findall(prose):
        file = page if not target else (page.parent / target)
        assert file.exists(), target
        assert not anchor or anchor.removeprefix("#") in anchors(file), target + anchor


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in ALL if page.stem not in READ_HERE], ids=lambda page: page.stem)
def test_every_command_on_a_page_exists(page: Path) -> None:
    """Also where it is not run here, with the options and arguments that it is shown with."""
    for block in blocks(page):
        for command in commands(block.text) if block.language == "console" else ():
            for arguments in invocations(command.line):
                context = click.Context(cli, info_name="warren")
                parse(cli, context, arguments)


def invocations(line: str) -> list[list[str]]:
    """Return the arguments of each `warren` in a line of shell."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    starts = [at for at, word in enumerate(words) if word == "warren" and (at == 0 or words[at - 1] in "|&&;;")]
    return [words[at + 1 : end_of(words, at + 1)] for at in starts]


def end_of(words: list[str], start: int) -> int:
    """Return where the shell's next word of its own is."""
    end = next((at for at in range(start, len(words)) if set(words[at]) <= set("|&;<>()")), len(words))
    return end - 1 if end < len(words) and words[end].startswith(">") and words[end - 1] == "2" else end


def parse(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Parse arguments as the command line would, down to the last command; raises what it raises."""
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    command.make_context(str(command.name), list(arguments), parent=context)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_data_on_a_page_is_well_formed(page: Path, tmp_path: Path) -> None:
    """JSON is JSON, one value or one a line; TOML is a configuration file that would be taken."""
    for block in blocks(page):
        if block.language == "json":
            for value in [block.text] if is_json(block.text) else block.text.splitlines():
                json.loads(value)
        elif block.language == "toml":
            tomllib.loads(block.text)
            (tmp_path / "config.toml").write_text(block.text, encoding="utf-8")
            read_config(tmp_path / "config.toml")


def is_json(text: str) -> bool:
    """Tell whether a text is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
