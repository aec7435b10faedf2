"""The plugin of pytest, as a project has it that uses Warren: its tests are run by a pytest of their own."""

import subprocess
import sys
from collections.abc import Callable

import pytest

PLUGIN = "warren.transport.testing.plugin"
LOADED = f"import sys, {PLUGIN}; print(*sys.modules)"
DESK = """
    import pytest
    import warren
    from warren.testing import call, fail, say

    @warren.tool
    async def pay(order: str, cents: int) -> str:
        "Pay money back for an order."
        return f"paid {cents} for {order}"
"""
Project = Callable[..., pytest.RunResult]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a function that runs the tests of a project, with our plugin and those that are named."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(tests: str, *plugins: str) -> pytest.RunResult:
        pytester.makepyfile(f"{DESK}\n{tests}")
        named = [word for name in (PLUGIN, *plugins) for word in ("-p", name)]
        return pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider", *named)

    return run


def test_a_test_on_trio(project: Project) -> None:
    """An async test needs no mark: the service is open in it, plays the newest script, and has the project's tools."""
    done = project("""
    @pytest.fixture
    def warren_options():
        return {"tools": [pay]}

    async def test_pays(warren_service, scripted):
        model = scripted(call("pay", order="17", cents=5), say("Paid."))
        result = await warren_service.create_session("Order 17 arrived broken.")
        assert result.text == "Paid."
        assert model.requests[1].messages[-1].results[0].content == "paid 5 for 17"
        scripted(say("Another."))
        assert (await warren_service.create_session("Hello")).text == "Another."

    class TestClass:
        async def test_a_method(self, warren_service, scripted, tmp_path):
            scripted(say("a"))
            assert (await warren_service.create_session(str(tmp_path))).text == "a"
            assert (await warren_service.list()).sessions[0].message_count == 2
    """)
    done.assert_outcomes(passed=2)


def test_failures_are_those_of_the_test(project: Project) -> None:
    """A turn's error has the lines of the test and not those of the library, and is in no exception group."""
    done = project("""
    async def test_assertion(warren_service, scripted):
        scripted(say("a"))
        assert (await warren_service.create_session("x")).text == "b"

    async def test_no_script(warren_service):
        await warren_service.create_session("x")
    """)
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["E*AssertionError: assert 'a' == 'b'", "E*call scripted(say(…)) before the turn begins"])
    done.stdout.no_fnmatch_line("*ExceptionGroup*")
    done.stdout.no_fnmatch_line("*RecursionError*")
    done.stdout.no_fnmatch_line("*/warren/*")


def test_a_service_is_open_in_async_tests_alone(project: Project) -> None:
    """A plain test and a fixture that use it are told so, and a plain test that makes a script is none of ours."""
    done = project("""
    def test_plain(warren_service):
        warren_service.create_session("x")

    @pytest.fixture
    def session(warren_service):
        return warren_service.list()

    async def test_with_a_fixture(session):
        pass

    def test_script(scripted):
        assert scripted(say("a")).requests == []
    """)
    done.assert_outcomes(passed=1, failed=1, errors=1)
    done.stdout.fnmatch_lines(["E*warren_service.*: the service is open within tests that are `async def`*"] * 2)


def test_virtual_time(project: Project) -> None:
    """A test with the mark waits for no pause and no time limit, and schedules and prompts for later are due in it."""
    done = project("""
    import trio
    from datetime import UTC, datetime, timedelta

    @pytest.mark.virtual_time
    async def test_an_hour(warren_service, scripted):
        scripted([fail("busy", retryable=True, retry_after=30, times=1), say("late", delay=1800)])
        began = trio.current_time()
        assert (await warren_service.create_session("x")).text == "late"
        assert 3630 <= trio.current_time() - began < 3660

    @pytest.mark.virtual_time
    async def test_a_limit(warren_service, scripted):
        scripted(say("never", delay=3600))
        with trio.move_on_after(60) as limit:
            await warren_service.create_session("x")
        assert limit.cancelled_caught

    @pytest.mark.virtual_time
    async def test_what_is_due(warren_service, scripted):
        scripted(say("watered"), say("watered again"), say("sown"))
        session_id = (await warren_service.create_session(None)).session_id
        await warren_service.create_schedule("Water the plants.", every="1h", session_id=session_id)
        await trio.sleep(2.1 * 3600)
        (found,) = (await warren_service.schedules()).schedules
        assert [run.ended for run in found.runs] == [True, True]
        before = datetime.now(UTC) + timedelta(hours=2.5)
        with trio.fail_after(3600):
            await warren_service.start_turn(session_id, "Sow.", mode="queue", not_before=before)
        assert trio.current_time() >= 2.4 * 3600
    """)
    done.assert_outcomes(passed=3)
    assert done.duration < 60


def test_a_property(project: Project) -> None:
    """Each example of Hypothesis has a service of its own; a failure is shown with its example."""
    done = project("""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5, database=None)

    @pytest.mark.virtual_time
    @SHARED
    @given(words=st.lists(st.sampled_from("ab"), min_size=1, max_size=3))
    async def test_holds(warren_service, scripted, words):
        scripted(*[say(word, delay=600) for word in words])
        assert (await warren_service.list()).sessions == ()
        assert (await warren_service.create_session("x")).text == words[0]

    class TestClass:
        @SHARED
        @given(word=st.just("c"))
        async def test_does_not(self, warren_service, scripted, word):
            scripted(say("a"))
            assert (await warren_service.create_session("x")).text == word
    """)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*AssertionError: assert 'a' == 'c'*", "*word='c'*"])


def test_options(project: Project) -> None:
    """A project gives a config, providers and variables of its own; the keys of the shell are not looked at."""
    done = project("""
    from warren import Config, Limits
    from warren.errors import InvalidParamsError, ProviderError
    from warren.testing import ScriptedModel

    @pytest.fixture
    def warren_options(monkeypatch):
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-shell")
        return {"config": Config(limits=Limits(max_live=7)), "providers": {"mine": ScriptedModel([say("mine")])}}

    async def test_it(warren_service, scripted):
        scripted(say("scripted"))
        assert (await warren_service.create_session("x")).text == "scripted"
        assert (await warren_service.create_session("x", model="mine")).text == "mine"
        with pytest.raises(ProviderError, match="ANTHROPIC_API_KEY"):
            await warren_service.create_session("x", model="claude-sonnet-4-5")
    """)
    done.assert_outcomes(passed=1)


def test_an_agent_of_the_project(project: Project) -> None:
    """An agent that names a real model is tested with a script in its place, and with its own tools."""
    done = project("""
    from warren import Agent
    from warren.testing import ScriptedModel

    DESK = Agent("desk", "Settle the complaint.", model="claude-sonnet-4-5", tools=[pay])

    @pytest.fixture
    def warren_options(scripted):
        clerk = Agent("clerk", "Look orders up.", model=ScriptedModel([say("I am the clerk.")]))
        return {"agents": [DESK.with_(model=scripted), clerk]}

    async def test_desk(warren_service, scripted):
        model = scripted(call("pay", order="17", cents=5), say("Paid."))
        assert (await warren_service.create_session("It is broken.", agent="desk")).text == "Paid."
        assert model.requests[0].messages[0].content == "Settle the complaint."
        assert [each.name for each in model.requests[0].tools] == ["pay"]
        assert (await warren_service.create_session("Who are you?", agent="clerk")).text == "I am the clerk."
    """)
    done.assert_outcomes(passed=1)


def test_an_option_that_is_none(project: Project) -> None:
    """A misspelt option is refused by its name, and not by that of a function that nobody has called."""
    done = project("""
    @pytest.fixture
    def warren_options():
        return {"tool": [pay]}

    async def test_it(warren_service):
        raise AssertionError
    """)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*TypeError: warren_options has 'tool', which is no argument of open_supervisor"])


def test_a_fixture_of_the_project_wins(project: Project) -> None:
    """A project that has its own `warren_service` gets what that returns."""
    done = project("""
    @pytest.fixture
    def warren_service():
        return "mine"

    async def test_it(warren_service, scripted):
        assert warren_service == "mine"
    """)
    done.assert_outcomes(passed=1)


def test_under_anyio(project: Project) -> None:
    """AnyIO runs a test with its mark: on trio it has the service, on asyncio that of `warren.aio`."""
    done = project(
        """
    import asyncio

    @warren.tool
    async def which() -> str:
        "Tell the loop."
        return type(asyncio.get_running_loop()).__name__

    @pytest.fixture
    def warren_options():
        return {"tools": [which]}

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["trio", "asyncio"])
    async def test_it(warren_service, scripted, anyio_backend):
        model = scripted(call("which"), say("a"))
        assert (await warren_service.create_session("x")).text == "a"
        (found,) = model.requests[-1].messages[-1].results
        assert ("EventLoop" in found.content) == (anyio_backend == "asyncio")
    """,
        "anyio.pytest_plugin",
    )
    done.assert_outcomes(passed=2)


def test_other_tests_are_left_alone(project: Project) -> None:
    """An async test without our fixtures is not ours to run, and nothing of Warren is imported for plain ones."""
    done = project("""
    async def test_of_nobody():
        raise AssertionError

    def test_plain():
        assert pay is not None
    """)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*async def functions are not natively supported.*"])


@pytest.mark.outside
def test_loading_the_plugin_is_light() -> None:
    """Each run of pytest where Warren is installed loads it: that costs no event loop and no attrs class."""
    done = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)
    found = set(done.stdout.split())
    assert {name for name in found if name.startswith("warren")} == {
        "warren",
        "warren.transport",
        "warren.transport.testing",
        PLUGIN,
    }
    assert not {"trio", "attrs", "asyncio", "cattrs"} & found
