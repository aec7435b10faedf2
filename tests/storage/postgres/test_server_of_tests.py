"""The server that tests start: nothing is left of it, however the tests end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.support.postgres import needs_postgres

STARTING = """
import sys, time
from tests.support.postgres import server
print(server()._process.pid, server().folder, flush=True)
time.sleep(600)
"""


def test_a_server_ends_with_the_process_that_started_it() -> None:
    """Also if that is killed, so that it cannot do anything about it."""
    needs_postgres()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    assert Path(folder, "data").exists()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() or Path(folder).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
