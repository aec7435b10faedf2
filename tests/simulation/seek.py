"""Looks for the first seed in which a check finds something: the command that `planted.py` runs against a copy."""

import logging
import sys
from pathlib import Path

import warren
from tests.simulation.plan import plan_of
from tests.simulation.stage import run


def problems_of(seed: int) -> list[str]:
    """Return what is wrong in the run of a seed, and its crash if it does not come to its end."""
    try:
        return run(plan_of(seed)).wrong
    except BaseExceptionGroup as exc:
        return [f"the run crashed: {exc!r}"]


def seek(check: str, seeds: int) -> str | None:
    """Return the number of seeds until a check found something, with what it was; None if it never does."""
    for seed in range(seeds):
        found = [each for each in problems_of(seed) if check in each]
        if found:
            return f"{seed + 1} {found[0]}"
    return None


if __name__ == "__main__":
    where, wanted, most = sys.argv[1:]
    assert Path(where) in Path(warren.__file__).parents, warren.__file__
    logging.disable(logging.CRITICAL)
    answer = seek(wanted, int(most))
    sys.stdout.write(answer or "")
