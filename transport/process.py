"""What a process that only hosts sessions sets for itself; a library must not do it to the program it is part of."""

import gc
from typing import Final

YOUNG: Final = 50_000
"""Objects made between two looks for garbage: a thousand turns at once make many, and soon drop them."""


def tune_gc() -> None:
    """Let Python look for cyclic garbage less often, and never again among what start-up has made.

    Measured with 1,000 sessions at once: a quarter less CPU time. Costs some megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
