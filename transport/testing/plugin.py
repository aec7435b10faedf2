"""The plugin of pytest: the fixtures `warren_service`, `warren_options` and `scripted`, and the mark `virtual_time`.

Every run of pytest loads this module wherever Warren is installed, so it imports nothing of Warren until a test uses a
fixture.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from warren.calls.facade import RuntimeService
    from warren.transport.testing.service import ScriptedFixture

SERVICE: Final = "warren_service"
SCRIPTED: Final = "scripted"
VIRTUAL: Final = "virtual_time"
LIBRARY: Final = Path(__file__).parents[2]
"""The folder of the package `warren`."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        f"{VIRTUAL}: run a test with `{SERVICE}` or `{SCRIPTED}` on a clock that jumps to the next deadline when every"
        " task waits",
    )


@pytest.fixture
def scripted() -> "ScriptedFixture":
    """Make the model of the test: `scripted(call("dig", where="here"), say("Dug."))` returns a `ScriptedModel`.

    The newest one answers the sessions of `warren_service` that name no model of their own.
    """
    from warren.transport.testing.service import ScriptedFixture  # noqa: PLC0415 - as the module says

    return ScriptedFixture()


@pytest.fixture
def warren_options() -> Mapping[str, Any]:
    """Return the arguments of `open_supervisor` for `warren_service`: none. Replace it in a conftest.py or a module."""
    return {}


@pytest.fixture
def warren_service(warren_options: Mapping[str, Any], scripted: "ScriptedFixture") -> "RuntimeService":
    """Open a service for the test, in the event loop of the test; it is closed behind the test.

    Sessions are in memory, and models of vendors have no keys, unless `warren_options` says otherwise.
    """
    from warren.transport.testing.service import opened_later  # noqa: PLC0415 - as the module says

    return opened_later(warren_options, scripted)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Put a function that opens the service in the place of the test, whichever plugin then runs it.

    It is done before the plugins that make a plain function of an async test, and undone for those that repeat tests.
    """
    if not isinstance(item, pytest.Function) or not _is_ours(item):
        return (yield)
    test, properties = item.obj, getattr(item.obj, "hypothesis", None)
    if properties is None:
        item.obj = _with_service(item, test)
        try:
            return (yield)
        finally:
            item.obj = test
    inner = properties.inner_test  # Hypothesis calls it once for each example, and each has a service of its own
    properties.inner_test = _plain(item, _with_service(item, inner))
    try:
        return (yield)
    finally:
        properties.inner_test = inner


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on trio that no other plugin has run: pytest itself does not know how."""
    if not _is_ours(pyfuncitem) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 - pytest has no public name for them
    _run(pyfuncitem, pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


def _run(item: pytest.Function, test: Callable[..., Awaitable[None]], /, *args: Any, **given: Any) -> None:
    """Run an async test on trio, by the clock that its mark asks for."""
    from warren.transport.testing.service import run  # noqa: PLC0415 - as the module says

    run(functools.partial(test, *args, **given), virtual=item.get_closest_marker(VIRTUAL) is not None)


def _plain(item: pytest.Function, test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return a plain function that runs an async test."""

    @functools.wraps(test)
    def run(*args: Any, **given: Any) -> None:
        _run(item, test, *args, **given)

    return run


def _is_ours(item: pytest.Function) -> bool:
    """Return whether a test is async, also below `@hypothesis.given`, and uses a fixture of ours."""
    inner = getattr(getattr(item.obj, "hypothesis", None), "inner_test", item.obj)
    return not {SERVICE, SCRIPTED}.isdisjoint(item.fixturenames) and inspect.iscoroutinefunction(inner)


def _with_service(item: pytest.Function, test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def within(*args: Any, **given: Any) -> None:
        from warren.transport.testing.service import NotOpen  # noqa: PLC0415 - as the module says

        later = item.funcargs.get(SERVICE)
        try:
            if not isinstance(later, NotOpen):  # the test has a fixture of its own under the name, or none
                await test(*args, **given)
                return
            async with later.open() as service:
                await test(*args, **given | ({SERVICE: service} if SERVICE in given else {}))
        except Exception as exc:
            if not item.config.getoption("fulltrace"):
                exc.__traceback__ = _outside(exc.__traceback__)
            raise

    return within


def _outside(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the thirty frames of a turn: none from the first in the library to the last in it."""
    frames, found = list[TracebackType](), traceback
    while found is not None:
        frames.append(found)
        found = found.tb_next
    inside = [at for at, each in enumerate(frames) if Path(each.tb_frame.f_code.co_filename).is_relative_to(LIBRARY)]
    inside = [at for at in inside if frames[at].tb_frame.f_code.co_filename != __file__]
    kept = frames if not inside else frames[: inside[0]] + frames[inside[-1] + 1 :]
    after: TracebackType | None = None
    for each in reversed(kept):
        after = TracebackType(after, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return after
