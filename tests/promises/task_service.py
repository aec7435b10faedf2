"""An MCP service that carries calls out as tasks, in a process of its own, which outlives those that call it.

It tells its address on its standard output, takes one command a line, and tells its state after each. `complete` ends
the one task, `forget` loses it, and `state` changes nothing. Its argument is its poll interval in milliseconds.
"""

import json
import sys

import trio

from tests.actors.tools.mcp.task_service import TaskService


def tell(**what: object) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until killed."""
    service = TaskService(poll=int(sys.argv[1]))
    async with service.served() as url:
        tell(url=url)
        while command := (await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).strip():
            if command == "complete":
                service.complete()
            elif command == "forget":
                service.tasks.clear()
            tasks = list(service.tasks.values())
            looks, states = sum(each.looks for each in tasks), [each.status for each in tasks]
            tell(looks=looks, states=states, faults=service.faults, calls=service.calls, answers=service.answers)


if __name__ == "__main__":
    trio.run(main)
