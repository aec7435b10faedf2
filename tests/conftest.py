"""How the suite runs: async tests on trio, a time limit on each of them, property tests that repeat."""

import functools
import gc
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
import trio
from trio.testing import MockClock

from tests.support.seeds import SEED, VARIABLE
from tests.support.tasks import waits
from tests.transport.cli.process import Cli

pytest_plugins = ["tests.tiers", "pytester"]
ROOT: Final = Path(__file__).resolve().parents[1]
REAL_LIMIT: Final = 120.0
VIRTUAL_LIMIT: Final = 24 * 60 * 60.0
GRACE: Final = 10.0

# `python -m pytest` puts the repository root first on the path, where our mailbox/ hides the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]

# Else every worker rewrites all assertions, and every process that a test starts compiles all modules, each time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whatever started the tests may ignore signals, as a shell does for `make test &`, and processes that tests start would
# ignore them, too. They do not inherit a handler.
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests on trio count on it

hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one more than there are processors: many tests wait for processes and sockets."""
    return (os.cpu_count() or 1) + 1


def pytest_report_header() -> str:
    """Say how to choose the same tests again."""
    return f"seed: {SEED} ({VARIABLE}={SEED} chooses the same rows of the parity table)"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage: nearly everything that is made then stays, and is made at once."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the modules and the list of tests out of every later search for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def soak_seconds() -> float:
    """How long a soak test goes on: the bound that `make soak` sets."""
    return float(os.environ.get("WARREN_SOAK_SECONDS", "60"))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Run commands in a new folder; what still runs at the end is killed."""
    command = Cli(tmp_path)
    yield command
    command.close()


@pytest.fixture(scope="module")
def silent_log() -> Iterator[None]:
    """Keep the log of hundreds of crashes on purpose from burying a failure's own words."""
    logger = logging.getLogger("warren")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Put a plain function in the place of an async test, also of one inside @hypothesis.given."""
    property_test = getattr(pyfuncitem.obj, "hypothesis", None)
    if property_test is None:
        if inspect.iscoroutinefunction(pyfuncitem.obj):
            pyfuncitem.obj = _on_trio(pyfuncitem, pyfuncitem.obj)
    elif inspect.iscoroutinefunction(property_test.inner_test):
        property_test.inner_test = _on_trio(pyfuncitem, property_test.inner_test)


def _on_trio(item: pytest.Function, test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    virtual = item.get_closest_marker("virtual_time") is not None
    marker = item.get_closest_marker("time_limit")
    limit = marker.args[0] if marker else VIRTUAL_LIMIT if virtual else REAL_LIMIT

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        clock = MockClock(autojump_threshold=0) if virtual else None
        trio.run(_limited, item, functools.partial(test, *args, **kwargs), limit, clock=clock)

    return run


async def _limited(item: pytest.Function, test: Callable[[], Awaitable[None]], limit: float) -> None:
    """Run the test; at the limit, note where every task waits, cancel it and fail."""
    main = trio.lowlevel.current_task()
    scope = trio.CancelScope()
    report = ""
    last_resort = threading.Timer(GRACE, lambda: _give_up(item, report))
    last_resort.daemon = True

    async def watch() -> None:
        nonlocal report
        await trio.sleep(limit)
        report = f"{item.nodeid} had not ended after {limit:g} s:\n" + "\n".join(waits(main))
        last_resort.start()
        scope.cancel()

    trio.lowlevel.spawn_system_task(watch)
    try:
        with scope:
            await test()
    finally:
        last_resort.cancel()
        if report:
            pytest.fail(report, pytrace=False)


def _give_up(item: pytest.Function, report: str) -> None:
    """End the process: the test is over its limit and did not react to being cancelled either."""
    item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
    sys.stderr.write(f"\n{report}\nIt cannot be cancelled: the run ends here.\n")
    sys.stderr.flush()
    os._exit(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out because the machine has no PostgreSQL; the run passes all the same."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)]
    left_out = [reason for reason in reasons if "PostgreSQL is not installed" in reason]
    if left_out:
        title = f"{len(left_out)} TESTS OF THE POSTGRESQL STORE WERE LEFT OUT"
        terminalreporter.write_sep("=", title, red=True, bold=True)
        terminalreporter.write_line(left_out[0].removeprefix("Skipped: "))
