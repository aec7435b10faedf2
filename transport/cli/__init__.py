"""The command line: `warren run`, `chat`, `resume`, `compact`, `sessions …`, `memory …`, `serve`, `rpc`, `models`.

May import every package. `app` has the table of the commands, each of which is a function in a module of its own.
"""

import os
import sys

from warren.base.extras import missing
from warren.transport.cli.process.exits import INTERRUPTED
from warren.transport.cli.process.init import run_in_child
from warren.transport.cli.process.tuning import end, start
from warren.transport.cli.terminal.json_lines import begin


def main() -> int:
    """Run the command line of this process and return its exit code.

    Exit codes are those of `warren.base.errors.NUMBERS`; bad usage is 2, and 130 is Ctrl-C outside a turn. Without the
    extra `cli` it says how to install it and returns 1.
    """
    run_in_child()
    start()
    if problem := missing("cli", "the warren command needs"):
        begin(sys.argv[1:], os.environ)
        sys.stderr.write(f"Error: {problem}\n")
        return 1
    try:
        # Not at the top: this package has to be importable without the extra.
        from warren.transport.cli.app import run_app  # noqa: PLC0415

        return run_app(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C before the command began, or after its end
        return INTERRUPTED
    finally:
        end()
