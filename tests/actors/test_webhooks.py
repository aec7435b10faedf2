"""Receivers on real sockets: good ones are told of everything, and bad ones harm nobody."""

import gc
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.receiver import Answers, Posted, receiving
from warren import Config, Limits, StoreConfig, open_supervisor
from warren.actors.tools import posting
from warren.base.errors import InvalidParamsError
from warren.base.signatures import new_secret, verify
from warren.calls.facade import SessionService
from warren.conversation.webhooks import (
    BACKOFF,
    FAILS_FOR,
    OF_TENANT,
    OF_WEBHOOK,
    Answer,
    Candidate,
    Post,
    Webhook,
    attempted,
    choose,
    pause_of,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@asynccontextmanager
async def opened(folder: Path, **limits: Any) -> AsyncIterator[SessionService]:
    """Open a runtime whose webhooks may post to this machine."""
    allowed = Limits(webhook_allow=("127.0.0.0/8",), **limits)
    async with open_supervisor(Config(store=StoreConfig(folder), model="echo", limits=allowed), environ={}) as service:
        yield service


async def only(service: SessionService, webhook_id: str, attempts: int = 1) -> Any:
    """Return the one delivery of a webhook once it was attempted so often."""
    while True:
        found = (await service.deliveries(webhook_id)).deliveries
        if found and found[0].attempts >= attempts:
            return found[0]
        await trio.sleep(0.01)


async def test_the_end_of_a_turn_is_posted_and_signed(tmp_path: Path) -> None:
    """By the secret that was shown once, and by both while a new one takes over; it is in no list."""
    async with opened(tmp_path) as service, receiving() as receiver:
        made = await service.create_webhook(receiver.url)
        assert made.secret is not None
        session_id = (await service.create_session("hello")).session_id
        (one,) = await receiver.got(1)
        assert (one.event["type"], one.session_id, one.event["data"]["result"]) == (
            "turn.completed",
            session_id,
            "hello",
        )
        now = datetime.now(UTC)
        found = verify("standard", made.secret, one.headers, one.body, now)
        assert found is not None
        assert found.delivery_id == one.delivery_id
        assert verify("standard", new_secret(), one.headers, one.body, now) is None
        rotated = await service.change_webhook(made.webhook_id, rotate_secret=True)
        assert rotated.secret not in (None, made.secret)
        await service.start_turn(session_id, "again")
        _, two = await receiver.got(2)
        for secret in (made.secret, str(rotated.secret)):
            assert verify("standard", secret, two.headers, two.body, now) is not None
        listed = (await service.webhooks()).webhooks
        assert [each.secret for each in listed] == [None]
        assert made.secret not in repr((listed, await service.audit(), made))
        assert {each.action for each in (await service.audit()).entries} >= {"webhook"}


async def hang(_stream: trio.SocketStream, _posted: Posted) -> None:
    """Say nothing."""
    await trio.sleep_forever()


async def drip(stream: trio.SocketStream, _posted: Posted) -> None:
    """Answer one byte after the other, and never to the end of the head."""
    for byte in b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 10_000:
        await stream.send_all(bytes([byte]))
        await trio.sleep(0.05)


async def flood(stream: trio.SocketStream, _posted: Posted) -> None:
    """Answer ten gigabytes."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n")
    for _ in range(10_000):
        await stream.send_all(b"x" * 1_000_000)


async def long_head(stream: trio.SocketStream, _posted: Posted) -> None:
    """Answer a head without an end."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    for _ in range(100_000):
        await stream.send_all(b"x-long: " + b"x" * 10_000 + b"\r\n")


async def rubbish(stream: trio.SocketStream, _posted: Posted) -> None:
    """Answer something else than HTTP."""
    await stream.send_all(b"\x00\xff nonsense\r\n\r\n")


async def redirect(stream: trio.SocketStream, _posted: Posted) -> None:
    """Answer that it is elsewhere."""
    await stream.send_all(b"HTTP/1.1 307 Elsewhere\r\nlocation: http://10.0.0.1/\r\ncontent-length: 0\r\n\r\n")


async def leave(stream: trio.SocketStream, _posted: Posted) -> None:
    """Close the connection."""
    await stream.aclose()


@pytest.mark.parametrize(
    ("answers", "status", "problem"),
    [
        (hang, None, "took longer than 0.5 s"),
        (drip, None, "took longer than 0.5 s"),
        (flood, 200, None),
        (long_head, None, "could not be posted"),
        (rubbish, None, "could not be posted"),
        (redirect, 307, "answered 307 Elsewhere"),
        (leave, None, "could not be posted"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
async def test_a_bad_receiver_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers, status: int | None, problem: str | None
) -> None:
    """Others are told at once, turns go on, and the memory stays as it is; what failed is attempted again."""
    monkeypatch.setattr(posting.Poster, "post", attrs_with(posting.Poster.post, seconds=0.5))
    async with opened(tmp_path) as service, receiving(answers) as bad, receiving() as good:
        harmed = await service.create_webhook(bad.url)
        await service.create_webhook(good.url)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with trio.fail_after(5):
            session_id = (await service.create_session("hello")).session_id
            for _ in range(20):
                await service.start_turn(session_id, "again")
            await good.got(21)
        with trio.fail_after(20):
            tried: list[Any] = []
            while not tried:
                await trio.sleep(0.05)
                tried = [each for each in (await service.deliveries(harmed.webhook_id)).deliveries if each.attempts]
        assert {each.status for each in tried} == {status}
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
        if problem is None:
            assert {each.state for each in tried} == {"delivered"}
        else:
            assert {each.state for each in tried} == {"pending"}
            assert all(problem in str(each.problem) for each in tried), tried
            assert (await service.webhooks()).webhooks[0].failing_since is not None
            assert all(each.next_at is not None for each in tried)


def attrs_with(post: Any, **changes: Any) -> Any:
    """Return a method that posts with other settings than those of its object."""

    async def changed(self: Any, *args: Any) -> Answer:
        found: Answer = await post(attrs.evolve(self, **changes), *args)
        return found

    return changed


async def test_many_receivers_that_hang_hold_up_no_other(tmp_path: Path) -> None:
    """There is room for the others besides what a few of them take up."""
    async with opened(tmp_path, webhooks=200) as service, receiving(hang) as bad, receiving() as good:
        for _ in range(OF_TENANT // OF_WEBHOOK - 3):
            await service.create_webhook(bad.url)
        await service.create_webhook(good.url)
        began = trio.current_time()
        session_id = (await service.create_session("hello")).session_id
        for _ in range(3):
            await service.start_turn(session_id, "again")
        with trio.fail_after(10):
            await good.got(4)
        assert trio.current_time() - began < 10


async def test_a_receiver_that_is_gone(tmp_path: Path) -> None:
    """410 pauses the webhook; the dead delivery is posted again, under its id, once somebody asks."""
    answers = [b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 204 None\r\n\r\n"]

    async def answer(stream: trio.SocketStream, _posted: Posted) -> None:
        await stream.send_all(answers.pop(0))

    async with opened(tmp_path) as service, receiving(answer) as receiver:
        made = await service.create_webhook(receiver.url)
        await service.create_session("hello")
        one = await only(service, made.webhook_id)
        assert (one.state, one.status, one.next_at) == ("dead", 410, None)
        while (await service.webhooks()).webhooks[0].state != "paused":  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)
        await service.create_session("nobody is told")
        (listed,) = (await service.webhooks()).webhooks
        assert (listed.problem, listed.dead, listed.pending) == ("the receiver answered 410: it is gone", 1, 0)
        await service.change_webhook(made.webhook_id, paused=False)
        assert await service.resend(made.webhook_id) == 1
        first, second = await receiver.got(2)
        assert first.delivery_id == second.delivery_id
        assert first.body == second.body


async def test_an_address_is_checked_when_it_is_made_and_when_it_is_connected_to(tmp_path: Path) -> None:
    """One of a private network is refused at once; a name that leads to one is refused at each attempt."""
    limits = Limits(webhook_allow=("192.0.2.0/24",))
    async with open_supervisor(Config(store=StoreConfig(tmp_path), limits=limits), environ={}) as service:
        for url in (
            "https://127.0.0.1/x",
            "https://10.1.2.3/x",
            "https://169.254.169.254/latest",
            "https://0.0.0.0/x",
            "https://[::1]/x",
            "https://[::ffff:127.0.0.1]/x",
            "https://224.0.0.1/x",
            "http://93.184.216.34/x",
            "ftp://example.org/x",
            "https:///x",
        ):
            with pytest.raises(InvalidParamsError) as refused:
                await service.create_webhook(url)
            assert refused.value.path == "$.url", url
        made = await service.create_webhook("https://localhost/x")
        await service.create_session("hello", model="echo")
        one = await only(service, made.webhook_id)
        assert "not a public address" in one.problem


def post(**changes: Any) -> Post:
    """Return a delivery."""
    return Post("msg_1", "hook", "default", "s", "turn.failed", NOW, due=NOW, body="{}").changed(**changes)


def test_the_pauses_between_attempts() -> None:
    """They follow the schedule with some jitter, then the delivery is dead; a receiver may put them off for a day."""
    found, at = post(), NOW
    for number, pause in enumerate(BACKOFF, 1):
        found = attempted(found, Answer(500, "no"), at, 0.5)
        assert (found.state, found.attempts, found.status) == ("pending", number, 500)
        assert found.due == at + timedelta(seconds=pause * 1.05)
        at = found.due
    assert attempted(found, Answer(500, "no"), at, 0.5).state == "dead"
    assert attempted(post(), Answer(503, "no", 60.0), NOW, 0).due == NOW + timedelta(seconds=60)
    assert attempted(post(), Answer(503, "no", 1.0), NOW, 0).due == NOW + timedelta(seconds=5)
    assert attempted(post(), Answer(429, "no", 1e9), NOW, 0).due == NOW + timedelta(days=1)
    delivered = attempted(post(), Answer(201), NOW, 0)
    assert (delivered.state, delivered.due, delivered.body) == ("delivered", None, "")
    assert attempted(post(), Answer(410, "gone"), NOW, 0).state == "dead"


def test_a_webhook_that_fails_for_days_is_paused() -> None:
    """From the first failure after the last success on."""
    hook = Webhook("hook", "default", "ann", NOW, "https://example.org", new_secret(), failing_since=NOW)
    assert pause_of(hook, Answer(500, "no"), NOW + FAILS_FOR - timedelta(seconds=1)) is None
    assert pause_of(hook, Answer(500, "no"), NOW + FAILS_FOR) == "all deliveries have failed for 5 days"
    assert pause_of(hook.changed(failing_since=None), Answer(500, "no"), NOW + FAILS_FOR) is None


def test_what_is_attempted_at_once_is_fair() -> None:
    """A few for each webhook, one for one that fails, and never all for one tenant or for those that fail."""
    due = [Candidate(f"{hook}/{n}", f"hook-{hook}", "t", hook % 2 == 0) for hook in range(200) for n in range(6)]
    chosen, more = choose(due, {})
    assert (len(chosen), more) == (OF_TENANT, True)
    of = [each.webhook_id for each in chosen]
    assert max(of.count(f"hook-{hook}") for hook in range(1, 200, 2)) == OF_WEBHOOK
    assert max(of.count(f"hook-{hook}") for hook in range(0, 200, 2)) == 1
    mine = {each.delivery_id: each for each in chosen}
    assert choose(due, mine) == ([], True)
    other = Candidate("x", "hook-x", "other", False)
    assert choose([*due, other], mine) == ([other], True)
    failing = [Candidate(f"f{n}", f"f{n}", f"t{n}", True) for n in range(200)]
    chosen, _ = choose(failing, {})
    assert len(chosen) == OF_TENANT
    assert choose([other], {each.delivery_id: each for each in chosen}) == ([other], False)
