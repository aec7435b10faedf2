"""Time spans as people write them: 30, 1.5s, 250ms, 1h30m, 7d. No I/O."""

import re
from typing import Final

UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Few programs read one of these: `re` compiles the pattern then.
DURATION: Final = r"[0-9]+(?:\.[0-9]+)?|(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+"
PART: Final = r"([0-9.]+)(ms|[smhd]|)"


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time span; None if the text is none, or is endless. A lone number is seconds."""
    if re.fullmatch(DURATION, text) is None:
        return None
    seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(PART, text))
    return seconds if seconds < float("inf") else None
