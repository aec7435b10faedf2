"""Run seeds: `python -m tests.simulation 17 18` shows the diary of each, and the smallest plan of one that fails."""

import logging
import sys

from tests.simulation.plan import plan_of
from tests.simulation.shrinking import verdict
from tests.simulation.stage import run

logging.disable(logging.CRITICAL)
for seed in map(int, sys.argv[1:]):
    stage = run(plan_of(seed))
    lines = [f"seed {seed}", *stage.world.record.diary, *([verdict(seed)] if stage.wrong else [])]
    sys.stdout.write("\n".join(lines) + "\n")
