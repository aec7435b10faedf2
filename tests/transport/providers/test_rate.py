"""The rate limit of a key: after a refusal no call goes before its time, and then they go gradually, in their order."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio.lowlevel

from tests.support.asking import ask
from tests.support.runtime import new_session
from tests.support.waiting import until
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, event, events, serve, status
from tests.transport.providers.calls import KEY, SSE, environ, request
from tests.transport.providers.dialects import DONE, delta
from warren.base.errors import AgentError, ProviderError
from warren.conversation.events import ModelSwitched
from warren.settings.config import Config, Limits, ModelServer, RetryPolicy
from warren.transport.embed import open_supervisor
from warren.transport.providers import Bounds, open_providers
from warren.transport.providers.rate import RateLimit, Told, reset_after, told

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        ("12", 12),
        ("1.5", 1.5),
        ("2026-11-23T12:00:30Z", 30),
        ("2026-11-23T11:00:30Z", 0),
        (str(int(NOW.timestamp()) + 7), 7),
        (str((int(NOW.timestamp()) + 7) * 1000), 7),
        ("", None),
        ("soon", None),
        ("1s and more", None),
        ("-3", None),
    ],
)
def test_the_ends_of_limits(text: str, seconds: float | None) -> None:
    """Vendors write them in five ways."""
    assert reset_after(text, NOW) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, None),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "1s"}, Told(3, 1)),
        ({"x-ratelimit-remaining-requests": "3"}, None),
        ({"x-ratelimit-remaining-tokens": "500", "x-ratelimit-reset-tokens": "1s"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1s"}, Told(0, 1)),
        (
            {
                "anthropic-ratelimit-requests-remaining": "9",
                "anthropic-ratelimit-requests-reset": "2026-11-23T12:00:30Z",
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-23T12:00:05Z",
            },
            Told(0, 5),
        ),
        ({"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "5"}, None),
    ],
)
def test_the_rest_of_limits(headers: dict[str, str], found: Told | None) -> None:
    """The tightest limit counts; one of tokens only if it is used up."""
    assert told(headers, NOW) == found


@attrs.define
class Server:
    """A model server that takes a number of requests in each period, and refuses the others until its end.

    Attributes:
        allowed: requests that it takes in a period.
        period: seconds.
        refusal: the headers of a refusal, by the seconds that are left of the period.
        early: requests that came after a refusal was sent and before its time.
        times: the times of the requests.
    """

    allowed: int
    period: float = 10.0
    refusal: Callable[[float], dict[str, str]] = lambda left: {"retry-after": str(left)}
    latency: float = 0.1
    early: int = 0
    refused: int = 0
    times: list[float] = attrs.field(factory=list)
    _ends: float = 0.0
    _taken: int = 0
    _told_at: float | None = None

    async def __call__(self, _: httpx.Request) -> httpx.Response:
        """Answer after some time."""
        now = trio.current_time()
        self.times.append(now)
        if now >= self._ends:
            self._ends, self._taken, self._told_at = now + self.period, 0, None
        if self._told_at is not None and now > self._told_at:
            self.early += 1
        taken = self._taken < self.allowed
        self._taken += 1
        ends = self._ends
        await trio.sleep(self.latency)
        if not taken:
            self.refused += 1
            self._told_at = self._told_at if self._told_at is not None else trio.current_time()
            left = max(0.0, ends - trio.current_time())
            return httpx.Response(429, headers=self.refusal(left), json={"error": {"message": "slow down"}})
        return httpx.Response(200, headers=SSE, content=events(delta("hi", "stop"), DONE))


@asynccontextmanager
async def calling(server: Any, wait: float = 60) -> Any:
    """Yield a call of a model of the server with one piece; the second server has the same key, the third another."""
    servers = [ModelServer(name=name, base_url="http://models.test/v1", key_env="K") for name in ("one", "two")]
    servers.append(ModelServer(name="other", base_url="http://models.test/v1", key_env="OTHER"))
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(
            {"K": KEY, "OTHER": "sk-other-key"}, client=client, servers=servers, bounds=Bounds(wait=wait)
        ) as providers,
    ):

        async def call(provider: str = "one") -> str:
            choice = providers.resolve("m", provider)
            return (await choice.provider.complete(request("m"), lambda _: None)).message.text

        yield call


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "refusal",
    [
        lambda left: {"retry-after": str(left)},
        lambda left: {"retry-after-ms": str(left * 1000)},
        lambda left: {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": f"{left:f}s"},
    ],
)
async def test_nobody_comes_early(refusal: Callable[[float], dict[str, str]]) -> None:
    """Calls of every name of the key wait for the time that the server told to one of them; another key does not."""
    server = Server(1, refusal=refusal)
    async with calling(server) as call:
        assert await call() == "hi"
        with pytest.raises(ProviderError, match="slow down"):
            await call()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for provider in ("one", "two"):
                nursery.start_soon(call, provider)
            await trio.sleep(1)
            assert server.early == 0
            server.allowed = 5
            assert await call("other") == "hi"
            server.early = 0
        assert server.early == 0
        assert trio.current_time() - began > 9


@pytest.mark.virtual_time
async def test_a_crowd_comes_back_gradually() -> None:
    """A thousand calls that wait make no storm: one goes first, and each answer lets two go."""
    server = Server(2, period=5)
    served = 0
    async with calling(server) as call:
        await call()
        await call()
        with pytest.raises(ProviderError):
            await call()
        server.allowed = 10_000

        async def one() -> None:
            nonlocal served
            await call()
            served += 1

        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(one)
        assert (server.early, server.refused, served) == (0, 1, 1_000)
        back = server.times[3:]
        rounds = [sum(each // server.latency == n for each in (one - back[0] + 0.01 for one in back)) for n in range(9)]
        assert rounds == [2**n for n in range(9)]


@pytest.mark.virtual_time
async def test_advice_is_kept_to() -> None:
    """A server that says how many calls are left gets no more of them, and refuses none."""
    periods: list[tuple[float, int]] = []

    async def server(_asked: httpx.Request) -> httpx.Response:
        now = trio.current_time()
        if not periods or now >= periods[-1][0] + 9:
            periods.append((now, 0))
        began, got = periods[-1]
        periods[-1] = (began, got + 1)
        left = {
            "x-ratelimit-remaining-requests": str(max(0, 2 - got)),
            "x-ratelimit-reset-requests": f"{began + 9 - now:f}s",
        }
        await trio.sleep(0.1)
        return httpx.Response(200, headers=SSE | left, content=events(delta("hi", "stop"), DONE))

    async with calling(server) as call:
        await call()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call)
        assert [got for _, got in periods] == [3, 3, 3, 2]


@pytest.mark.virtual_time
async def test_advice_alone_fails_nobody() -> None:
    """A server that always says that no call is left, and refuses none, is called in time."""
    limit = RateLimit(20)
    nothing = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1h"}
    (await limit.enter("x")).answered(nothing)
    began = trio.current_time()
    for _ in range(3):
        (await limit.enter("x")).answered(nothing)
    assert trio.current_time() - began <= 60


@pytest.mark.virtual_time
async def test_a_wait_is_bounded() -> None:
    """A wait that is too long is an error at once, one that becomes too long is an error in time; both say so."""
    server = Server(0, period=100)
    async with calling(server, wait=20) as call:
        with pytest.raises(ProviderError):
            await call()
        began = trio.current_time()
        with pytest.raises(ProviderError, match="asked to wait") as caught:
            await call()
        assert trio.current_time() == began
        assert (caught.value.cause, caught.value.retryable) == ("rate_limited", True)
        assert caught.value.retry_after == pytest.approx(105, abs=6)
        limit = RateLimit(20)
        (await limit.enter("x")).refused({}, 1)
        entry = await limit.enter("x")
        async with trio.open_nursery() as nursery:
            waits = ask(nursery, limit.enter, "x")
            await trio.sleep(1)
            entry.refused({}, 100)
            assert "asked to wait" in (await waits.failure(ProviderError)).message


@pytest.mark.virtual_time
async def test_a_wait_ends_with_its_call() -> None:
    """A call that is cancelled while it waits leaves at once, and the next one takes its place."""
    limit = RateLimit(60)
    (await limit.enter("x")).refused({}, 10)
    went: list[int] = []

    async def call(number: int, scope: trio.CancelScope) -> None:
        with scope:
            entry = await limit.enter("x")
            went.append(number)
            entry.answered({})

    scopes = [trio.CancelScope() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(call, number, scope)
            await trio.sleep(0.1)
        assert limit.waiting == 3
        scopes[0].cancel()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert limit.waiting == 2
    assert went == [1, 2]


@pytest.mark.virtual_time
async def test_a_call_without_an_answer_keeps_nobody_back() -> None:
    """The next one goes after two seconds."""
    limit = RateLimit(60)
    (await limit.enter("x")).refused({}, 0)
    await limit.enter("x")
    began = trio.current_time()
    await limit.enter("x")
    assert trio.current_time() - began == pytest.approx(2, abs=0.01)


@attrs.define
class Strict:
    """A real server that takes two requests, refuses all others for a while, and counts the requests that come anyway.

    Attributes:
        refusals: refusals so far.
        early: requests that arrived while they were refused, after the first refusal had been sent.
        served: requests that were answered.
    """

    seconds: float = 0.4
    refusals: int = 0
    early: int = 0
    served: int = 0
    _opens: float | None = None

    async def __call__(self, _: Request, stream: trio.SocketStream) -> None:
        """Answer a request."""
        now = trio.current_time()
        if self.served == 2 and self._opens is None:
            self._opens = now + self.seconds
            self.refusals += 1
            await stream.send_all(status(429, {"error": {"message": "slow"}}, retry_after_ms=str(self.seconds * 1000)))
            return
        self.early += self._opens is not None and now < self._opens
        self.served += 1
        await stream.send_all(HEAD + chunk(event(delta("hi", "stop"))) + chunk(event(DONE)) + END)


async def test_a_thousand_sessions_and_a_strict_server() -> None:
    """Not one request reaches a server that said 429 before its time, and all turns are answered."""
    server = Strict()
    config = Config(model="m", provider="openai", retry=RetryPolicy(max_attempts=2))
    async with serve(server) as url, open_supervisor(config, environ=environ(url)) as service:
        sessions = [await new_session(service) for _ in range(1_000)]
        await service.start_turn(sessions[0], "hi")
        await service.start_turn(sessions[1], "hi")
        async with trio.open_nursery() as nursery:
            asked = [ask(nursery, service.start_turn, session, "hi") for session in sessions[:1]]
            await until(lambda: service.metrics().total("warren_model_errors_total"))
            asked += [ask(nursery, service.start_turn, session, "hi") for session in sessions[1:]]
            await trio.sleep(0.05)
            assert service.metrics().total("warren_model_calls_waiting") > 0
        assert (server.early, server.refusals, server.served) == (0, 1, 1_002)
        assert {(await each.value()).text for each in asked} == {"hi"}
        assert service.metrics().total("warren_model_calls_waiting") == 0


async def test_a_turn_that_waits() -> None:
    """An interrupt ends it at once; a wait that is too long leads to the next model."""

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(status(429, {"error": {"message": "slow"}}, retry_after="30"))

    config = Config(
        model="m", provider="openai", retry=RetryPolicy(max_attempts=1), limits=Limits(interrupt_grace=1, model_wait=40)
    )
    async with (
        serve(handle) as url,
        open_supervisor(config, environ=environ(url)) as service,
        trio.open_nursery() as nursery,
    ):
        session, seen = await new_session(service), list[Any]()
        with pytest.raises(ProviderError, match="slow"):
            await service.start_turn(session, "hi")
        turn = ask(nursery, service.start_turn, session, "hi")
        await until(lambda: service.metrics().total("warren_model_calls_waiting"))
        await service.interrupt(session)
        assert (await turn.failure(AgentError)).cause == "cancelled"
    config = attrs.evolve(config, limits=Limits(model_wait=10), fallback=("echo",))
    async with serve(handle) as url, open_supervisor(config, environ=environ(url)) as service:
        session = await new_session(service)
        await service.start_turn(session, "hi", on_event=lambda one: seen.append(one.event))
        assert [event.to_model for event in seen if isinstance(event, ModelSwitched)] == ["echo"]
