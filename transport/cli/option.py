"""How the commands' options are made: each with its variable in the environment, and in groups."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for several, which act as if they stood below each other."""

    def decorate(function: F) -> F:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a click option that the environment can set too, as WARREN_<NAME>."""
    name = next(name for name in names if name.startswith("--")).split("/")[0]
    variable = "WARREN_" + name.removeprefix("--").replace("-", "_").upper()
    in_environment: dict[str, Any] = {"envvar": variable, "show_envvar": True}
    return click.option(*names, **in_environment | settings)
