"""The options that switch kinds of tools on and off, and that let calls of a kind wait for approval."""

from collections.abc import Mapping
from typing import Any, Final

import click

from warren.conversation.categories import CATEGORIES, INHERIT, Gates, Switches
from warren.transport.cli.settings.option import group, option

SWITCHES: Final = ("enable", "disable")
KINDS: Final = (*SWITCHES, "ask", "deny")
"""The names of the options; a file can set them too."""
_KIND: Final = click.Choice(CATEGORIES)


def _option(name: str, about: str) -> Any:
    return option(f"--{name}", type=_KIND, multiple=True, metavar="KIND", help=f"{about}; repeatable.")


kind_options: Final = group(
    _option("enable", f"Offer a kind of tools: {', '.join(CATEGORIES)}"),
    _option("disable", "Do not offer a kind of tools"),
    _option("ask", "Let calls of a kind of tools wait for the user's word"),
    _option("deny", "Refuse calls of a kind of tools"),
)
approve_option: Final = click.option(
    "--approve-all", is_flag=True, help="Allow every call that would wait for your word; without a terminal none is."
)


def kinds_given(given: Mapping[str, Any], nearer: Mapping[str, bool], switches: Switches | None) -> dict[str, Any]:
    """Return the fields of `Options` for kinds of tools.

    Args:
        given: the values of these options.
        nearer: for each option whether it was set nearer than by a file. Values of a file hold for the runtime, the
            others for the session or the turn as well.
        switches: the runtime's switches by its other options.

    Raises:
        click.UsageError: if a kind is switched both on and off.
    """
    if "ask" not in given:
        return {}
    chosen = {name: given[name] for name in KINDS if nearer[name]}
    whole = _switches(given, nearer).over(switches)
    return {
        "switches": whole,
        "gates": _gates(given),
        "overrides": None if (found := _switches(chosen, nearer)) == INHERIT else found,
        "approvals": None if (gates := _gates(chosen)) == Gates() else gates,
    }


def _switches(given: Mapping[str, Any], nearer: Mapping[str, bool]) -> Switches:
    found: dict[str, Any] = {}
    for name in sorted(SWITCHES, key=lambda name: nearer[name]):  # what is nearer to the user comes later, and wins
        for kind in given.get(name, ()):
            if found.get(kind, name) != name and nearer["enable"] == nearer["disable"]:
                raise click.UsageError(f"--enable {kind} and --disable {kind} exclude each other.")
            found[kind] = name
    return Switches(**found)


def _gates(given: Mapping[str, Any]) -> Gates:
    """Return the gates; a kind that is to be asked about and denied is denied."""
    asked, denied = given.get("ask", ()), given.get("deny", ())
    found: dict[str, Any] = {**dict.fromkeys(asked, "ask"), **dict.fromkeys(denied, "deny")}
    return Gates(**found)
