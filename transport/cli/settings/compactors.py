"""The compactor for a name in the settings: `module:name`, from the modules of the process's Python."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from warren.base.errors import InvalidParamsError
from warren.compaction.policy import Compactor, NewCompactor, compactor_of
from warren.conversation.options import CompactionConfig

PATH = "$.compactor"


def load_compactor(name: str, config: CompactionConfig) -> Compactor | NewCompactor:
    """Return the object named `module:name`; modules of the working folder are found, too.

    Raises:
        InvalidParamsError: if there is no such module or name, its import fails, or the object is no compactor.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise _problem(name, "is not of the form MODULE:NAME")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        compactor_of(found, config, None)
    except Exception as exc:
        raise _problem(name, f"cannot be used: {type(exc).__name__}: {exc}") from exc
    return found  # type: ignore[no-any-return]


def _problem(name: str, problem: str) -> InvalidParamsError:
    return InvalidParamsError.at(PATH, f"{name!r} {problem}")
