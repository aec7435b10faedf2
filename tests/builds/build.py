"""Which of the six builds these tests run in: what is installed, and what is therefore on."""

import os
from typing import Final

SURFACES: Final = ("cli", "client", "gateway", "jwt", "load", "mcp")
TOOLS: Final = ("skills", "tools")
DATABASES: Final = ("postgres",)
CAPABILITIES: Final = ("session-store", "memory-store", "session-compaction")
EVERY: Final = ",".join([*CAPABILITIES, *SURFACES, *TOOLS, *DATABASES])
EXTRAS: Final = frozenset(os.environ.get("WARREN_BUILD", EVERY).split(",")) - {""}
"""The extras that were installed. `run.py` names them; without it they are all taken to be there."""

IN_A_BUILD: Final = "WARREN_BUILD" in os.environ
"""Whether a wheel was installed for these tests; else they run in the tree, where everything is there."""

STORE: Final = "session-store" in EXTRAS
MEMORY: Final = "memory-store" in EXTRAS
COMPACTION: Final = "session-compaction" in EXTRAS
SQLITE: Final = STORE or MEMORY
"""Whether the database engine is there: the memory brings it too, and whoever has it can have a store."""
