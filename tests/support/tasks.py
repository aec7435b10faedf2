"""Where the tasks of a run wait, for a failure that names them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

TRIO: Final = Path(trio.__file__).parent


def waits(task: trio.lowlevel.Task, indent: str = "") -> Iterator[str]:
    """Yield a line for each task, outermost first, with the frames it waits in (those of trio left out)."""
    frames = [
        f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
        for frame, line in task.iter_await_frames()
        if not Path(frame.f_code.co_filename).is_relative_to(TRIO)
    ]
    yield f"{indent}{task.name}: {' > '.join(frames)}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from waits(child, indent + "  ")
