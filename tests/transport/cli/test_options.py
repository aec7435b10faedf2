"""The options of a command."""

import re
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.cli.parsing import commands, parse
from warren.base.database_url import DatabaseUrl
from warren.base.durations import seconds_of
from warren.conversation.budget import Budget
from warren.conversation.options import CompactionConfig
from warren.settings.config import Config, StoreConfig
from warren.transport.cli.app import cli
from warren.transport.cli.settings.options import Mode, Options
from warren.transport.cli.settings.values import (
    duration_of,
    existing_folder_of,
    folder_of,
    label_of,
    place_of,
    text_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5", 1.5), ("1.5s", 1.5), ("250ms", 0.25), ("1h30m", 5400), ("2d", 172800), ("1m1s1ms", 61.001)],
)
def test_durations(text: str, seconds: float) -> None:
    """A time span is read with its units; a lone number is seconds."""
    assert duration_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "1h30", "s", "1x", "1 h", "٣s", "nan", "inf", "1e3", "9" * 400])
def test_what_is_no_duration(text: str) -> None:
    """Zero, negative, endless and unreadable spans are refused, by their own text."""
    with pytest.raises(click.BadParameter, match=re.escape(repr(text))):
        duration_of(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 999))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, milliseconds: int) -> None:
    """Parts may be any number of units."""
    expected = hours * 3600 + minutes * 60 + milliseconds / 1000
    assert seconds_of(f"{hours}h{minutes}m{milliseconds}ms") == pytest.approx(expected)


def test_labels() -> None:
    """The first = divides key and value; the value may hold more of them, or nothing."""
    assert label_of("a=b=c") == ("a", "b=c")
    assert label_of("a=") == ("a", "")
    for bad in ("a", "=b", ""):
        with pytest.raises(click.BadParameter, match="K=V"):
            label_of(bad)


def test_bytes_that_are_not_text_are_refused() -> None:
    """The shell's raw bytes arrive as lone surrogates and are refused by name of the option, not later."""
    with pytest.raises(click.BadParameter, match="not valid UTF-8"):
        text_of("caf\udce9")
    with pytest.raises(click.BadParameter, match="not valid UTF-8") as caught:
        parse("--model", "caf\udce9")
    assert caught.value.param is not None
    assert caught.value.param.name == "model"


def test_defaults() -> None:
    """Nothing given: the store in the working folder, no limits, text; contexts are compacted."""
    assert parse() == Options(config=Config(compaction=CompactionConfig()))
    assert parse().store == Path(".rkat")
    assert parse().turn.budget is None


def test_a_budget_holds_what_was_given() -> None:
    """The four limits make one budget."""
    given_ = ["--max-total-tokens", "9", "--max-duration", "2m", "--max-tool-calls", "3", "--max-steps", "4"]
    assert parse(*given_).turn.budget == Budget(9, 120.0, 3, 4)
    assert parse("--max-steps", "4").turn.budget == Budget(max_steps=4)


@pytest.mark.parametrize("name", ["--max-tokens", "--max-total-tokens", "--max-tool-calls", "--max-steps"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", ""])
def test_counts_are_above_zero(name: str, value: str) -> None:
    """A limit that is no whole number above 0 is refused by its option's name."""
    with pytest.raises(click.BadParameter) as caught:
        parse(name, value)
    assert name in caught.value.format_message()


def test_the_environment_sets_options() -> None:
    """Each option has a variable; the command line wins over it."""
    environ = {"WARREN_MODEL": "gpt-x", "WARREN_STORE": "elsewhere", "WARREN_MAX_TOKENS": "7", "WARREN_OUTPUT": "json"}
    found = parse(**environ)
    assert (found.turn.model, found.store, found.turn.max_tokens, found.mode.json) == (
        "gpt-x",
        Path("elsewhere"),
        7,
        True,
    )
    assert found.store_named
    assert parse("-m", "echo", **environ).turn.model == "echo"


@pytest.mark.parametrize(
    ("argv", "environ", "store"),
    [
        (["--ephemeral"], {}, None),
        (["--ephemeral"], {"WARREN_STORE": "kept"}, None),
        (["--store", "kept"], {"WARREN_EPHEMERAL": "1"}, Path("kept")),
        ([], {"WARREN_EPHEMERAL": "1"}, None),
        ([], {"WARREN_EPHEMERAL": "0", "WARREN_STORE": "kept"}, Path("kept")),
    ],
)
def test_the_command_line_decides_what_is_kept(argv: list[str], environ: dict[str, str], store: Path | None) -> None:
    """An option that was typed wins over a variable that says otherwise."""
    assert parse(*argv, **environ).store == store


@pytest.mark.parametrize(
    ("argv", "environ"),
    [(["--ephemeral", "--store", "x"], {}), ([], {"WARREN_EPHEMERAL": "1", "WARREN_STORE": "x"})],
)
def test_keeping_and_not_keeping_exclude_each_other(argv: list[str], environ: dict[str, str]) -> None:
    """A contradiction from one source is refused, not guessed at."""
    with pytest.raises(click.UsageError, match="--store and --ephemeral"):
        parse(*argv, **environ)


@pytest.mark.parametrize(
    ("argv", "environ", "json"),
    [
        (["run", "--output", "json", "--bogus"], {}, True),
        (["run", "--output=json"], {}, True),
        (["run", "--output=json", "--output", "text"], {}, True),
        (["run"], {"WARREN_OUTPUT": "json"}, True),
        (["run", "--output", "text"], {"WARREN_OUTPUT": "json"}, False),
        (["run", "json", "--output"], {}, False),
        ([], {}, False),
    ],
)
def test_the_way_errors_are_shown_is_known_before_the_arguments_are(
    argv: list[str], environ: dict[str, str], *, json: bool
) -> None:
    """A usage error of a program that asked for JSON is JSON too."""
    assert Mode.guess(argv, environ).json is json


@pytest.mark.parametrize("command", commands(cli), ids=lambda command: command.name)
def test_every_command_and_option_says_what_it_is_for(command: click.Command) -> None:
    """Help has a whole sentence for each command, and a text for each option."""
    assert not command.get_short_help_str(100).endswith("...")
    for param in command.params:
        assert isinstance(param, click.Argument) or param.help, param.name


URLS = (
    "mysql://me:secret@db/warren",
    "postgresql:me:secret@db/warren",
    "sqlite:///here.db",
    "FILE://host/x",
    "https:/one.slash",
    "sqlite:here.db",
    "file:x",
)


@pytest.mark.parametrize("url", URLS)
def test_a_store_is_no_url(url: str) -> None:
    """A URL is refused with its scheme and without its secrets: it would be made as a folder of that name."""
    with pytest.raises(click.BadParameter) as caught:
        parse("--store", url)
    assert f"({url.partition(':')[0]}:…), and has to be a folder" in caught.value.format_message()
    assert "secret" not in caught.value.format_message()
    with pytest.raises(click.BadParameter, match="has to be a folder"):
        parse(WARREN_STORE=url)


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_folder_is_refused(text: str) -> None:
    """It would be the folder of the command, where an empty variable of a shell means none."""
    for read in (place_of, folder_of, existing_folder_of):
        with pytest.raises(click.BadParameter, match="must not be empty"):
            read(text)
    with pytest.raises(click.BadParameter, match="must not be empty"):
        parse("--store", text)


def test_a_store_may_be_a_database() -> None:
    """The address of a PostgreSQL database is no folder, and is shown without its password."""
    url = "postgresql://me:secret@db/warren"
    for options in (parse("--store", url), parse(WARREN_STORE=url)):
        assert options.store == DatabaseUrl(url)
        assert options.store_named
        assert "secret" not in repr(options)


@pytest.mark.parametrize("url", ["postgresql://me:secret@db/warren", *URLS])
def test_an_embedded_store_is_no_url(url: str) -> None:
    """The same holds for a program that opens the store itself, and for a path that was made of a URL."""
    for path in (url, Path(url)):
        with pytest.raises(ValueError, match="path is a URL") as caught:
            StoreConfig(path)
        assert "secret" not in str(caught.value)


def test_a_folder_may_look_a_little_like_a_url() -> None:
    """A colon alone makes no URL, nor does a drive."""
    for name in ("a:b", "C:/stores", "./postgresql", "a/b:/c"):
        assert parse("--store", name).store == Path(name)
        assert StoreConfig(Path(name)).path == Path(name)
