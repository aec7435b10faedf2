"""Options that are made from fields."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs
import click
import pytest
from click.testing import CliRunner

from warren.base.fields import Between, is_whole, not_negative, optional, positive
from warren.conversation.budget import Budget
from warren.transport.cli.settings.option import is_flat, of_field


@attrs.frozen
class Kettle:
    """A kettle.

    Attributes:
        cups: cups that it holds; None measures them.
        heat: share of its power.
        whistle: time that it whistles.
        spout: "short" drips.
        plan: a drawing. Null has none.
        loud: whether to wake the house.
        teas: teas that it knows.
        limits: its limits.
    """

    cups: int | None = attrs.field(default=None, validator=optional(is_whole, positive))
    heat: float = attrs.field(default=0.5, validator=Between(0, 1, without_low=True))
    whistle: float = attrs.field(default=3.0, validator=not_negative)
    spout: Literal["short", "long"] = "long"
    plan: Mapping[str, Any] | None = None
    loud: bool = False
    teas: tuple[str, ...] = ()
    limits: Budget | None = None


def option_of(name: str, **settings: Any) -> click.Option:
    """Return the option of a field of a kettle."""

    @click.command()
    @of_field(Kettle, name, **settings)
    def command(**_given: object) -> None:
        pass

    (option,) = command.params
    assert isinstance(option, click.Option)
    return option


HELP: Final = {
    "cups": "Cups that it holds; unset measures them.",
    "heat": "Share of its power.",
    "whistle": "Time that it whistles.",
    "spout": '"short" drips.',
    "plan": "A drawing. Unset has none.",
    "loud": "Wake the house.",
    "teas": "Teas that it knows.",
}


@pytest.mark.parametrize(("name", "text"), HELP.items())
def test_the_help_is_the_sentence_of_the_field(name: str, text: str) -> None:
    """A user reads the words of the class, but for its None."""
    assert option_of(name).help == text
    assert option_of(name, note="Mind it.").help == f"{text} Mind it."


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cups", {"1": 1}, ["0", "1.5", "x"]),
        ("heat", {"1": 1.0, "0.25": 0.25}, ["0", "1.1", "x"]),
        ("whistle", {"0": 0.0, "1m30s": 90.0}, ["-1", "x"]),
        ("spout", {"LONG": "long"}, ["broad"]),
        ("plan", {'{"a": 1}': {"a": 1}}, ["[1]", "{"]),
    ],
)
def test_the_values_are_those_of_the_field(name: str, good: dict[str, object], bad: list[str]) -> None:
    """Type and bounds of the flag are the field's."""
    seen: list[object] = []

    @click.command()
    @of_field(Kettle, name, f"--{name}", "value")
    def command(value: object) -> None:
        seen.append(value)

    for text in good:
        assert CliRunner().invoke(command, [f"--{name}", text]).exit_code == 0
    assert seen == list(good.values())
    for text in bad:
        assert CliRunner().invoke(command, [f"--{name}", text]).exit_code == 2, text
    seen.clear()
    assert CliRunner().invoke(command, []).exit_code == 0
    assert seen == [None]  # a file may set it


def test_an_option_of_a_tuple_is_repeatable() -> None:
    """Each time it is given adds a text; without it a file may set it."""
    seen: list[object] = []

    @click.command()
    @of_field(Kettle, "teas", "--tea", "teas")
    def command(teas: object) -> None:
        seen.append(teas)

    for args in (["--tea", "mint", "--tea", "sage"], []):
        assert CliRunner().invoke(command, args).exit_code == 0
    assert seen == [("mint", "sage"), ()]


def test_help_names_the_default() -> None:
    """It is the field's; a flag that is off by default says nothing."""
    shown = {name: option_of(name).show_default for name in HELP}
    numbers = {"cups": None, "heat": "0.5", "whistle": "3s"}
    assert shown == {**numbers, "spout": "long", "plan": None, "loud": None, "teas": None}


def test_the_environment_may_set_it() -> None:
    """Unless the option is for one command alone."""
    assert option_of("cups").envvar == "WARREN_CUPS"
    assert option_of("cups", variable=False).envvar is None


def test_an_object_has_no_option_of_its_own() -> None:
    """Its parts have."""
    assert [field.name for field in attrs.fields(Kettle) if not is_flat(field)] == ["limits"]
