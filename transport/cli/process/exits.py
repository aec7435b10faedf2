"""Exit codes of commands besides those in `warren.base.errors.NUMBERS`; imported without the extra `cli`."""

from typing import Final

NOT_WHOLE: Final = 3
"""The answer was cut at its cap, ended by a filter, or is empty."""
INTERRUPTED: Final = 130
"""The user interrupted the command outside a turn, with Ctrl-C."""
