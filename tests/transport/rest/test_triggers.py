"""`POST /triggers/{trigger_id}`: a signature is the only credential, and strangers learn nothing."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, storage_of, transcript
from tests.support.signing import github, standard
from tests.transport.rest.clients import problem, rest
from warren.actors.calls.service import Service
from warren.actors.resources.storage import StorageActor
from warren.base.errors import SessionNotFoundError, StoreError
from warren.base.ids import id_under
from warren.base.tenant_limits import TenantLimits
from warren.conversation.messages import UserMessage
from warren.conversation.triggers import DeliveryView, TriggerView, key_of
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Config, Limits
from warren.storage.operations import KeepDelivery, Operation

CREDENTIAL: Final = "x" * 40
"""The token of the gateway's clients, which no sender here has."""
SECRET: Final = "It's a Secret to Everybody"  # noqa: S105 - it is none
BODY: Final = b'{"action": "opened", "pull_request": {"title": "Dig deeper"}}'
NOBODY: Final = "0199e1d2-0000-7000-8000-000000000000"


@attrs.define(eq=False)
class There:
    """A gateway with a trigger.

    Attributes:
        service: its sessions.
        http: a client of it without a token.
        trigger: the trigger.
        asked: the prompts that the model was asked last, one for each of its calls.
        answers: set once the model may answer.
    """

    service: Service
    http: httpx.AsyncClient
    trigger: TriggerView
    asked: list[str]
    answers: trio.Event

    async def send(self, delivery_id: str = "d1", body: bytes = BODY, **headers: str) -> httpx.Response:
        """Send a signed call."""
        signed = standard(str(self.trigger.secret), delivery_id, body)
        return await self.http.post(f"/triggers/{self.trigger.trigger_id}", content=body, headers=signed | headers)

    async def deliveries(self) -> tuple[DeliveryView, ...]:
        """Return what is kept of the calls."""
        (found,) = (await self.service.triggers()).triggers
        return found.deliveries

    async def prompts(self, session_id: str) -> list[str]:
        """Return the prompts that a session has had, once none waits any more."""
        while await self.service.inputs(session_id):  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)
        return [each.content for each in await transcript(self.service, session_id) if isinstance(each, UserMessage)]


@asynccontextmanager
async def there(
    folder: Path | None = None,
    *,
    answers: bool = True,
    config: Config | None = None,
    own: bool = False,
    public_url: str | None = None,
    **made: Any,
) -> AsyncIterator[There]:
    """Serve a trigger for a body, whose session is there if it is its `own`; the model waits unless it `answers`."""
    asked, may = list[str](), trio.Event()
    if answers:
        may.set()

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        asked.append(str(request.messages[-1].content))  # type: ignore[union-attr] # it is a prompt
        await may.wait()
        return reply("done")

    async with open_runtime(FunctionModel(answer), store=folder, config=config) as service:
        if own:
            made["session_id"] = await new_session(service)
        trigger = await service.create_trigger(**{"prompt": "{body.action}: {body.pull_request.title}", **made})
        async with rest(service, token=CREDENTIAL, public_url=public_url) as http:
            yield There(service, http, trigger, asked, may)
            may.set()


async def test_a_signed_call_begins_a_turn(tmp_path: Path) -> None:
    """It is answered once the prompt is stored; sent again, it has the same answer, and no second prompt."""
    async with there(tmp_path) as at:
        first = await at.send()
        assert first.status_code == 202
        found = first.json()
        key = key_of(at.trigger.trigger_id, "d1")
        assert found == {
            "delivery_id": "d1",
            "state": "fired",
            "session_id": found["session_id"],
            "input_id": id_under(key),
        }
        assert await at.prompts(found["session_id"]) == ["opened: Dig deeper"]
        for _ in range(4):
            again = await at.send()
            assert (again.status_code, again.json()) == (202, found)
        assert await at.prompts(found["session_id"]) == ["opened: Dig deeper"]
        other = (await at.send("d2")).json()
        assert other["session_id"] != found["session_id"]
        assert await at.prompts(other["session_id"]) == ["opened: Dig deeper"]
        (second, newest) = await at.deliveries()
        assert (newest.delivery_id, newest.state, newest.session_id, newest.ended) == (
            "d1",
            "fired",
            found["session_id"],
            True,
        )
        assert second.delivery_id == "d2"
        assert len(at.asked) == 2


async def test_a_session_of_its_own(tmp_path: Path) -> None:
    """The prompts wait in its inbox one behind the other; what the inbox is too full for is to be sent again."""
    config = Config(limits=Limits(inbox=3))  # the prompt of the turn that runs is one of them
    async with there(tmp_path, answers=False, config=config, own=True) as at:
        session_id = at.trigger.session_id
        assert session_id is not None
        assert (await at.send("d0")).json()["session_id"] == session_id
        with trio.fail_after(5):
            while not at.asked:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)
        for number in (1, 2):
            assert (await at.send(f"d{number}")).status_code == 202
        full = await at.send("d3")
        assert problem(full)[:2] == (503, "CAPACITY_EXCEEDED")
        assert int(full.headers["retry-after"]) >= 1
        assert [each.delivery_id for each in await at.deliveries()] == ["d2", "d1", "d0"]
        assert [each.ended for each in await at.deliveries()] == [False] * 3
        assert (await at.send("d2")).status_code == 202  # it is known, though the inbox is full
        at.answers.set()
        assert await at.prompts(session_id) == ["opened: Dig deeper"] * 3
        assert (await at.send("d3")).status_code == 202
        assert await at.prompts(session_id) == ["opened: Dig deeper"] * 4


async def test_strangers_hear_that_nothing_is_there(tmp_path: Path) -> None:
    """Whatever is wrong with a call, the answer is the same; nothing is written, and no session is looked at."""
    async with there(tmp_path, own=True) as at:
        path, secret = f"/triggers/{at.trigger.trigger_id}", str(at.trigger.secret)
        good = standard(secret, "d1", BODY)
        bad = [
            (f"/triggers/{NOBODY}", good),
            ("/triggers/x", good),
            ("/triggers/%00", good),
            (path, {}),
            (path, {**good, "webhook-signature": f"v1,{'A' * 43}="}),
            (path, {**good, "webhook-id": "d2"}),
            (path, standard(secret, "d1", BODY + b" ")),
            (path, standard(secret, "d1", BODY, late=400)),
            (path, standard(secret, "d1", BODY, late=-400)),
            (path, github(secret, "d1", BODY)),
            (path, {"x-gitlab-token": secret, "idempotency-key": "d1"}),
            (path, {"authorization": f"Bearer {CREDENTIAL}"}),
        ]
        written = storage_of(at.service).statistics()
        answers = [await at.http.post(to, content=BODY, headers=headers) for to, headers in bad]
        assert {(each.status_code, each.text) for each in answers} == {(404, answers[0].text)}
        assert problem(answers[0]) == (404, "INVALID_PARAMS", "$.path")
        assert storage_of(at.service).statistics() == written
        assert at.asked == []
        assert await at.deliveries() == ()
        other = await at.http.get(path)
        assert (other.status_code, other.headers["allow"]) == (405, "POST, PATCH, DELETE")
        assert (await at.http.delete(path)).status_code == 401
        assert (await at.http.post(path, content=BODY, headers=good)).status_code == 202


async def test_a_prefix_stands_before_it(tmp_path: Path) -> None:
    """A gateway below a path takes calls there, from whatever page and by whatever name it was reached."""
    async with there(tmp_path, public_url="https://example.org/warren") as at:
        signed = standard(str(at.trigger.secret), "d1", BODY) | {"host": "example.org"}
        sent = await at.http.post(f"/warren/triggers/{at.trigger.trigger_id}", content=BODY, headers=signed)
        assert sent.status_code == 202


async def test_a_long_body_is_refused(tmp_path: Path) -> None:
    """Whether its length is announced or not, and whoever has sent it."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 10_000

    async with there(tmp_path) as at:
        path = f"/triggers/{at.trigger.trigger_id}"
        for content in (b"x" * 2_000_000, endless()):
            refused = await at.http.post(path, content=content)
            assert problem(refused) == (413, "INVALID_PARAMS", "$.body")


async def test_github(tmp_path: Path) -> None:
    """Its own headers are read; its `ping` only tries the address."""
    template = "{event}: {body.pull_request.title}"
    async with there(tmp_path, prompt=template, scheme="github", secret=SECRET) as at:
        path = f"/triggers/{at.trigger.trigger_id}"
        assert at.trigger.secret == SECRET
        ping = await at.http.post(path, content=b"{}", headers=github(SECRET, "p1", b"{}", "ping"))
        assert (ping.status_code, ping.json()) == (200, {"delivery_id": "p1", "state": "ping"})
        assert await at.deliveries() == ()
        sent = await at.http.post(path, content=BODY, headers=github(SECRET, "g1", BODY, "pull_request"))
        assert sent.status_code == 202
        assert await at.prompts(sent.json()["session_id"]) == ["pull_request: Dig deeper"]
        nameless = github(SECRET, "g1", BODY)
        del nameless["x-github-delivery"]
        assert problem(await at.http.post(path, content=BODY, headers=nameless)) == (422, "INVALID_PARAMS", "$.headers")


async def test_what_cannot_be_a_prompt_is_refused_and_kept(tmp_path: Path) -> None:
    """The sender need not send it again; the list says why."""
    async with there(tmp_path, prompt="{body.action}") as at:
        assert problem(await at.send(body=b"no json")) == (422, "INVALID_PARAMS", "$.body")
        (failed,) = await at.deliveries()
        assert (failed.state, failed.ended, failed.problem) == ("failed", True, "the prompt would be empty")
        assert (await at.send()).status_code == 202  # sent again with another body, it has become a good one
        (fired,) = await at.deliveries()
        assert (fired.state, fired.problem) == ("fired", None)


async def test_skips_while_the_one_before_runs(tmp_path: Path) -> None:
    """A call that was left out stays so when it is sent again."""
    async with there(tmp_path, answers=False, own=True, overlap="skip") as at:
        assert (await at.send("d1")).json()["state"] == "fired"
        assert (await at.send("d1")).json()["state"] == "fired"
        skipped = await at.send("d2")
        assert (skipped.status_code, skipped.json()) == (202, {"delivery_id": "d2", "state": "skipped"})
        at.answers.set()
        assert await at.prompts(str(at.trigger.session_id)) == ["opened: Dig deeper"]
        with trio.fail_after(5):
            while not (await at.deliveries())[-1].ended:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)
        assert (await at.send("d2")).json()["state"] == "skipped"
        assert (await at.send("d3")).json()["state"] == "fired"
        assert [(each.delivery_id, each.state) for each in await at.deliveries()] == [
            ("d3", "fired"),
            ("d2", "skipped"),
            ("d1", "fired"),
        ]


async def test_paused_changed_and_removed(tmp_path: Path) -> None:
    """While it is paused senders are told to come again; an old secret is good no more."""
    async with there(tmp_path) as at:
        trigger_id, old = at.trigger.trigger_id, at.trigger
        await at.service.change_trigger(trigger_id, paused=True)
        paused = await at.send()
        assert (paused.status_code, paused.headers["retry-after"]) == (503, "60")
        assert await at.deliveries() == ()
        changed = await at.service.change_trigger(trigger_id, paused=False, rotate_secret=True, prompt="again: {body}")
        assert changed.secret not in (None, old.secret)
        assert (await at.send()).status_code == 404
        at.trigger = changed
        sent = await at.send()
        assert await at.prompts(sent.json()["session_id"]) == [f"again: {BODY.decode()}"]
        assert (await at.service.change_trigger(trigger_id, prompt="x")).secret is None
        await at.service.delete_trigger(trigger_id)
        assert (await at.send()).status_code == 404


async def test_an_archived_session_ends_its_trigger(tmp_path: Path) -> None:
    """The sender is told that nothing comes any more, but for what has come already."""
    async with there(tmp_path, own=True) as at:
        session_id = str(at.trigger.session_id)
        before = await at.send("d1")
        assert await at.prompts(session_id) == ["opened: Dig deeper"]
        await at.service.archive(session_id)
        for each in ("d2", "d3"):
            assert (await at.send(each)).status_code == 410
        (found,) = (await at.service.triggers()).triggers
        assert found.state == "ended"
        assert "archived" in str(found.problem)
        assert [(each.delivery_id, each.state) for each in found.deliveries] == [("d2", "failed"), ("d1", "fired")]
        assert (await at.send("d1")).json() == before.json()
        with pytest.raises(SessionNotFoundError):
            await at.service.change_trigger(found.trigger_id, prompt="x")
        await at.service.delete_trigger(found.trigger_id)


async def test_limits_of_the_tenant(tmp_path: Path) -> None:
    """A call beyond them is to be sent again, and is not kept."""
    config = Config(tenants={"default": TenantLimits(turns_per_minute=1)})
    async with there(tmp_path, config=config) as at:
        assert (await at.send("d1")).status_code == 202
        refused = await at.send("d2")
        assert problem(refused)[:2] == (429, "CAPACITY_EXCEEDED")
        assert int(refused.headers["retry-after"]) >= 1
        assert [each.delivery_id for each in await at.deliveries()] == ["d1"]
        assert (await at.send("d1")).status_code == 202


async def test_a_delivery_that_is_not_kept_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is stored before: the sender that comes again gets the same answer, and the list has it then."""
    lost, write = list[Operation[Any]](), StorageActor.write

    async def losing(self: StorageActor, operation: Operation[Any]) -> Any:
        if isinstance(operation, KeepDelivery) and not lost:
            lost.append(operation)
            raise StoreError("the disk is full", cause="disk_full", retryable=True)
        return await write(self, operation)

    monkeypatch.setattr(StorageActor, "write", losing)
    async with there(tmp_path) as at:
        refused = await at.send()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert await at.deliveries() == ()
        sent = await at.send()
        assert sent.status_code == 202
        assert await at.prompts(sent.json()["session_id"]) == ["opened: Dig deeper"]
        assert len(await at.deliveries()) == len((await at.service.list()).sessions) == len(at.asked) == 1


async def test_no_secret_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by the list, the audit and the log, nor by an answer; bodies are in no log either."""
    caplog.set_level(logging.DEBUG)
    async with there(tmp_path, scheme="github", secret=SECRET, prompt="x{body}") as at:
        path, body = f"/triggers/{at.trigger.trigger_id}", b"whisper"
        assert (await at.http.post(path, content=body, headers=github("wrong", "g1", body))).status_code == 404
        assert (await at.http.post(path, content=body, headers=github(SECRET, "g1", body))).status_code == 202
        headers = {"authorization": f"Bearer {CREDENTIAL}"}
        listed = await at.http.get("/triggers", headers=headers)
        assert (listed.status_code, SECRET in listed.text) == (200, False)
        entries = (await at.service.audit()).entries
        assert "trigger" in {each.action for each in entries}
        assert SECRET not in repr(entries)
    assert SECRET not in caplog.text
    assert "whisper" not in caplog.text
