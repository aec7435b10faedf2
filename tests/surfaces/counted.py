"""`warren`, made to tell of itself: on SIGUSR1 it adds a line to a file, with how many tasks and objects it has.

Nothing of this is in a normal run. A fault that the library logs as its own goes to stderr, whatever the command says.
"""

import functools
import gc
import json
import logging
import os
import signal
import sys
from typing import Any

import trio


class Tasks(trio.abc.Instrument):
    """Counts the tasks that are alive."""

    alive = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        del task
        self.alive += 1

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        del task
        self.alive -= 1


def main() -> Any:
    """Run `warren` with the arguments that come after the file's name."""
    name = sys.argv.pop(1)
    tasks = Tasks()
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(_number: int, _frame: object) -> None:
        gc.collect()
        os.write(file, json.dumps([tasks.alive, len(gc.get_objects())]).encode() + b"\n")

    signal.signal(signal.SIGUSR1, tell)
    setattr(trio, "run", functools.partial(trio.run, instruments=[tasks]))  # noqa: B010
    faults = logging.StreamHandler(sys.stderr)
    faults.setLevel(logging.ERROR)
    logging.getLogger().addHandler(faults)
    from warren.transport import cli  # noqa: PLC0415 - after `trio.run` has been replaced

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
