"""The command line without the wait for its imports: a process that has them forks for each command.

It runs `warren.transport.cli.main` with the arguments, folder, environment and streams of a command of its own.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

IMPORTED: Final = (
    "warren.client",
    "warren.storage.memory",
    "warren.storage.memory.postgres",
    "warren.storage.postgres",
    "warren.transport.cli.app",
    "warren.transport.cli.memory.remembered",
    "warren.transport.cli.sessions.changing",
    "warren.transport.cli.turns.taking",
    "warren.transport.providers.scripted",
)
ROOT: Final = Path(__file__).resolve().parents[3]


def start(environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the process that forks; the end of its input ends it, and no command that runs."""
    code = "import sys; sys.path.append(sys.argv[1]); from tests.parity.surfaces.warm import serve; serve()"
    return subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ | {"OPENBLAS_NUM_THREADS": "1"},
    )


def serve() -> None:
    """Run commands, one for each line of stdin: `{id, argv, folder, out, err}`.

    Of each command two lines are written, `{id, pid}` and at its end `{id, code}`.
    """
    for name in IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if not os.fork():
            _keep(json.loads(line))


def _keep(job: dict[str, Any]) -> None:
    """Run one command in a child of this process, say so, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        _run(job)
    _tell({"id": job["id"], "pid": pid})
    _, status = os.waitpid(pid, 0)
    _tell({"id": job["id"], "code": os.waitstatus_to_exitcode(status)})
    os._exit(0)


def _tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _run(job: dict[str, Any]) -> None:
    from warren.transport.cli import main  # noqa: PLC0415 - the parent has imported it

    os.chdir(job["folder"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
        os.dup2(os.open(path, flags if number else os.O_RDONLY), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - not the jobs that the parent has read ahead
    sys.argv = ["warren", *job["argv"]]
    os._exit(main())
