"""The recordings of the suite, and what has to be read in them.

Expected is what the vendor's own client reads. Where that is wrong, or does not know the server of another maker, the
file was corrected by hand.
"""

import json
from functools import lru_cache
from typing import Any, Final

import attrs

from tests.recorded.corpus import FOLDER
from tests.recorded.normal import Normal

TELLING: Final = FOLDER / "telling.json"


@attrs.frozen
class Expected:
    """What has to be read in a recording.

    Attributes:
        kind: what it is an example of.
        normal: the answer.
        owed: texts that have to go back with it, as they came.
    """

    kind: str
    normal: Normal
    owed: tuple[str, ...] = ()


@lru_cache
def telling() -> dict[str, Expected]:
    """Return what is expected of each of the recordings of the suite."""
    rows: dict[str, dict[str, Any]] = json.loads(TELLING.read_text())
    return {
        name: Expected(row["kind"], Normal(**row["normal"]), tuple(row.get("owed", ()))) for name, row in rows.items()
    }
