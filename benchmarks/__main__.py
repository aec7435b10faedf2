"""Run every benchmark in a process of its own; print each one's JSON, then a table of goals."""

import json
import subprocess
import sys

SCRIPTS = (
    "mailbox_ask",
    "memory_turn",
    "durable_turn",
    "projection",
    "growth",
    "large_file",
    "stored_sessions",
    "concurrency",
    "compaction",
    "idle_session",
    "import_time",
    "memory_quality",
    "memory_index",
)


def main(names: list[str]) -> None:
    """Run the named benchmarks, all by default."""
    rows = []
    for name in names or SCRIPTS:
        run = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], capture_output=True, text=True, check=True)
        print(run.stdout, end="", flush=True)
        rows += json.loads(run.stdout)["goals"]
    print()
    for row in rows:
        mark = "met" if row["met"] else "missed"
        print(f"{row['what']:<60} {row['value']:>12,.3f}   goal {row['relation']} {row['goal']:<8g} {mark}")


if __name__ == "__main__":
    main(sys.argv[1:])
