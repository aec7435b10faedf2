"""Exit codes of commands besides those in `warren.errors.NUMBERS`; imported without the extra `cli`."""

from typing import Final

INTERRUPTED: Final = 130
"""The user interrupted the command outside a turn, with Ctrl-C."""
