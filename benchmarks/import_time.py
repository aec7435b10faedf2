"""How long does `import warren` take, and what does it load?"""

import statistics
import subprocess
import sys

from benchmarks.report import Goal, report

PROBE = """
import sys, time
begun = time.perf_counter()
import warren
print(time.perf_counter() - begun, *sorted({name.split(".")[0] for name in sys.modules}))
"""
HEAVY = ("apsw", "usearch", "numpy")
ROUNDS = 9


def main() -> None:
    """Print the median of some fresh interpreters."""
    runs = []
    for _ in range(ROUNDS):
        out = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout.split()
        runs.append(float(out[0]))
        loaded = out[1:]
    seconds = statistics.median(runs)
    figures = {"seconds": round(seconds, 4), "heavy_modules_loaded": [name for name in HEAVY if name in loaded]}
    report("How long does `import warren` take?", figures, [Goal("import warren, seconds", seconds, "<=", 0.25)])


if __name__ == "__main__":
    main()
