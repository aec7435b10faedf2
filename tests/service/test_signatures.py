"""The signatures of the service, which programs rely on."""

import inspect
import json
import re
from pathlib import Path
from typing import Final

from warren.calls.facade import RuntimeService, SessionService

GOLDEN: Final = Path(__file__).with_name("signatures.json")
_MODULE: Final = re.compile(r"\bwarren\.(?:\w+\.)+")


def shown(cls: type) -> dict[str, str]:
    """Return the signature of each method of a class, without the modules of its types."""
    methods = {name: value for name, value in vars(cls).items() if not name.startswith("_") and name != "perform"}
    return {
        f"{cls.__name__}.{name}": "property"
        if isinstance(value, property)
        else _MODULE.sub("", str(inspect.signature(value)))
        for name, value in methods.items()
    }


def test_the_signatures_stay() -> None:
    """Each method takes the arguments that programs were written for, with the same defaults."""
    assert shown(SessionService) | shown(RuntimeService) == json.loads(GOLDEN.read_text())
