"""The seed of a run, by which it chooses what it has no time to do whole."""

import os
import secrets
from typing import Final

VARIABLE: Final = "WARREN_TEST_SEED"
# The workers of a run inherit the choice of the process that starts them: all of them have to collect the same tests.
SEED: Final = int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(1000))))
