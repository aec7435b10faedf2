"""What do traces cost a turn? Counted in instructions, as `instructions` does.

A turn that is not sampled and one that is are counted apart; a sample of 1 % is a mixture of both. The spans go to a
receiver in another process, which is not counted.
"""

import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.instructions import of_a_turn, run_turns
from benchmarks.report import Goal, report
from warren.settings.config import TraceConfig

KIND: Final = "in_memory"
SAMPLED: Final = 0.01


class _Receiver(http.server.BaseHTTPRequestHandler):
    """Takes whatever it is sent."""

    def do_POST(self) -> None:
        """Take a request."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _receiving() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def main() -> None:
    """Print the instructions of a turn without traces, not sampled, and sampled."""
    figures: dict[str, Any] = {}
    goals = []
    if shutil.which("valgrind") is None:
        figures["failed"] = {"valgrind": "is not installed"}
    else:
        with _receiving() as url:
            off, without, sampled = (of_a_turn(KIND, "benchmarks.traces", each, url) for each in ("off", "0", "1"))
        figures = {"off": off, "not_sampled": without, "sampled": sampled}
        mixed = (1 - SAMPLED) * without + SAMPLED * sampled
        goals.append(
            Goal("instructions of a turn without traces, over those with 1 % sampled", off / mixed, ">=", 0.97)
        )
    report("What do traces cost a turn?", figures, goals)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _, sample, url, turns = sys.argv
        run_turns(KIND, int(turns), None if sample == "off" else TraceConfig(url, float(sample)))
    else:
        main()
