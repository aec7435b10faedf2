"""Faults that are planted in a copy of the package, one at a time, to see that the simulation finds each of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

import warren

SEEDS: Final = 300
"""The seeds within which each fault has to be found."""
ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(warren.__file__).parent


@attrs.frozen
class Planted:
    """A fault.

    Attributes:
        name: its name.
        file: the file that has it, in the package.
        text: the source text, which is there once.
        instead: the text in its place.
        breaks: the promise that it breaks.
        found_by: the check that finds it: a part of what that says.
        soon: whether few seeds are enough.
    """

    name: str
    file: str
    text: str
    instead: str
    breaks: str
    found_by: str
    soon: bool = False


def plant(fault: Planted, package: Path) -> None:
    """Plant a fault in a copy of the package. Raises AssertionError if the source text is not there exactly once."""
    file = package / fault.file
    source = file.read_text()
    times = source.count(fault.text)
    assert times == 1, f"the text of the fault {fault.name!r} is {times} times in {fault.file}: adapt its row"
    file.write_text(source.replace(fault.text, fault.instead))


def sought(fault: Planted, folder: Path, seeds: int = SEEDS) -> tuple[int, str] | None:
    """Return the number of seeds that find a fault in a copy in a folder, and what is wrong then; None if none does."""
    package = folder / "warren"
    shutil.copytree(PACKAGE, package)  # also what links lead to
    plant(fault, package)
    command = [sys.executable, "-m", "tests.simulation.seek", str(folder), fault.found_by, str(seeds)]
    path = os.pathsep.join((str(folder), str(ROOT)))
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    number, _, problem = ended.stdout.partition(" ")
    return (int(number), problem) if number else None


PLANTED: Final[Sequence[Planted]] = (
    Planted(
        "commits have no fence",
        "storage/sqlite/operations.py",
        """{_FENCE.format("column")} AND message_count = column19 AND last_seq = column20""",
        """state <> {DELETED}""",
        "A process that has lost a session writes nothing to it.",
        "under the epoch",
        soon=True,
    ),
    Planted(
        "an answer comes before its commit",
        "actors/session/actor.py",
        """                committed = await conversation.commit(record, terminal, ending, turn.plan.ended)""",
        """                for each in conversation.inbox._taken.values():
                    for mail in each.askers:
                        mail.answer(ending)
                committed = await conversation.commit(record, terminal, ending, turn.plan.ended)""",
        "What a caller is told is stored.",
        "one_end",
        soon=True,
    ),
    Planted(
        "open turns are not looked for",
        "storage/sqlite/inbox.py",
        """        UNION SELECT key FROM sessions WHERE turn IS NOT NULL)""",
        """        )""",
        "A turn whose process has died goes on without a request.",
        "do not come to rest",
        soon=True,
    ),
    Planted(
        "waiting inputs are not looked for",
        "storage/sqlite/inbox.py",
        """        SELECT session FROM inbox WHERE outcome IS NULL AND starts
        UNION SELECT""",
        """        SELECT""",
        "An input begins its turn without a request, also after its process has died.",
        "do not come to rest",
    ),
    Planted(
        "calls that were left begin anew",
        "actors/session/actor.py",
        """NOTHING_LEFT if kept is None else dict(conversation.calls)""",
        """NOTHING_LEFT""",
        "A call that may have run is reported to the model, unless its tool allows another run.",
        "a second time",
        soon=True,
    ),
    Planted(
        "a stop is the end of a turn",
        "actors/session/actor.py",
        """if stops and self._turn.steps is not None:""",
        """if stops and self._turn.steps is None:""",
        "A key is settled by the end of its turn, and by no stop.",
        "true_end",
        soon=True,
    ),
    Planted(
        "the endings of keys are not stored",
        "storage/sqlite/inbox.py",
        """db.execute(_END, (inputs.outcome.decode(), session, number))""",
        """db.execute(_END, ("", session, number))""",
        "Who asks under a key is told how its turn has ended.",
        "true_end",
    ),
    Planted(
        "inputs that are taken wait again",
        "actors/session/inbox.py",
        """**{n: e for n, e in taken.items() if n not in kept}}""",
        """**taken}""",
        "An input is taken once.",
        "nothing_twice",
    ),
)
"""All of them."""
