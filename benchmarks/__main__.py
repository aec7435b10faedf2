"""Run benchmarks, each in a process of its own; print each one's JSON, then a table of goals.

`python -m benchmarks [--page] [NAME ...]`, all of them unless named. `--page` keeps the results in `run.json` beside
this file, in place of older ones of the same benchmarks, and makes `docs/performance.md` of all that is in it.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.page import PAGE, RUN, SCRIPTS, machine, page, table


def main(names: list[str], *, keep: bool) -> None:
    """Run the named benchmarks, all by default."""
    results = {name: _run(name) for name in names or SCRIPTS}
    print()
    print(table([goal for result in results.values() for goal in result["goals"]]))
    if keep:
        before = json.loads(RUN.read_text(encoding="utf-8")) if RUN.exists() else {}
        run = {name: {**before, **results}[name] for name in SCRIPTS if name in {**before, **results}}
        RUN.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(run), encoding="utf-8")


def _run(name: str) -> dict[str, Any]:
    """Run one, print its JSON and return it, with what it ran on."""
    run = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, text=True, check=True)
    print(run.stdout, end="", flush=True)
    result: dict[str, Any] = json.loads(run.stdout)
    return {**result, "machine": machine()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks", description="Run benchmarks; all of them unless named.")
    parser.add_argument("--page", action="store_true", help="keep the results and make docs/performance.md of them")
    parser.add_argument("names", nargs="*", choices=[[], *SCRIPTS], metavar="NAME")
    options = parser.parse_args()
    main(options.names, keep=options.page)
