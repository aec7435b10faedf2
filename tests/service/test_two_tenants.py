"""Two tenants act at random on one runtime: what each sees is what it would see on a runtime of its own."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.damaging import quick_folder
from tests.support.memories import memory_in
from tests.support.runtime import memory_of, open_runtime, replay
from warren.actors.calls.service import Service
from warren.base.errors import WarrenError
from warren.base.ids import new_session_id
from warren.base.principals import Principal
from warren.conversation.messages import UserMessage
from warren.conversation.peers import Peer

pytestmark = pytest.mark.virtual_time

TENANTS: Final = ("default", "acme")
NAMES: Final = ("ann", "bob", "eve")
WORDS: Final = ("the blue door", "a key by the door", "bread and flour", "a door")
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME: Final = re.compile(r"datetime\.datetime\([^()]*\)|\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|\+00:00)")
DONE: Final = ("create", "turn", "inject", "label", "fork", "archive", "delete", "send", "remember", "poke")
OFTEN: Final = ("create", "remember", "remember", "poke")
ACTIONS: Final = st.tuples(
    st.sampled_from(TENANTS), st.sampled_from((*DONE, *OFTEN)), st.integers(0, 5), st.integers(0, 5)
)
Step = tuple[str, str, int, int]
BEGINNING: Final[list[Step]] = [
    (tenant, action, 5, number)
    for tenant, number in zip(TENANTS, (5, 2), strict=True)
    for action in ("create", "remember")
]
"""Both have a session that they remember something of, so that each script may lead to it."""


@attrs.define(eq=False)
class Actor:
    """One tenant at a runtime.

    Attributes:
        runtime: the runtime's own service.
        tenant: the tenant.
        strangers: sessions that it may try to reach: those of the other tenant, or unknown ones.
        sessions: its sessions, in the order of their creation.
        outcomes: the results and the errors of its calls.
    """

    runtime: Service
    tenant: str
    strangers: Callable[[int], str]
    sessions: list[str] = attrs.field(factory=list)
    outcomes: list[object] = attrs.field(factory=list)

    @property
    def service(self) -> Service:
        """The service of the tenant."""
        return self.runtime.as_(Principal(self.tenant, "ann"))

    async def act(self, action: str, one: int, two: int) -> None:
        """Do one step of a script, and note what comes of it."""
        service, word = self.service, WORDS[two % len(WORDS)]
        if action == "create":
            key, peer = (f"key {one}" if one < 3 else None), (Peer(NAMES[one % 3], NAMES) if two < 3 else None)
            await self._note(service.create_session(word, idempotency_key=key, peer=peer, labels={"n": str(two)}))
            await self._look()
            return
        if action == "poke":
            await self._poke(self.strangers(one), two)
            return
        if not self.sessions:
            return
        session_id = self.sessions[one % len(self.sessions)]
        await self._note(self._call(action, session_id, two))
        await self._look()

    async def _call(self, action: str, session_id: str, two: int) -> Any:
        service, word = self.service, WORDS[two % len(WORDS)]
        texts = [UserMessage(f"{word} {number}") for number in range(two)]
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "turn": lambda: service.start_turn(session_id, word),
            "inject": lambda: service.inject_context(session_id, word, idempotency_key=f"key {two}"),
            "label": lambda: service.label(session_id, {"n": str(two)}),
            "fork": lambda: service.fork(session_id),
            "archive": lambda: service.archive(session_id),
            "delete": lambda: service.delete(session_id),
            "send": lambda: service.send_message(session_id, NAMES[two % 3], word),
            "remember": lambda: memory_of(self.runtime).remember(session_id, 9, texts, tenant=self.tenant),
        }
        return await calls[action]()

    async def _look(self) -> None:
        """Take note of a session that was created."""
        known = {each.session_id for each in (await self.service.list(limit=1000, include_archived=True)).sessions}
        self.sessions += sorted(known - set(self.sessions))

    async def _poke(self, session_id: str, which: int) -> None:
        """Try to reach a session of somebody else."""
        service = self.service
        calls: Sequence[Callable[[], Awaitable[Any]]] = (
            lambda: service.read(session_id),
            lambda: service.start_turn(session_id, "mine?"),
            lambda: service.delete(session_id),
            lambda: service.fork(session_id),
            lambda: service.inject_context(session_id, "mine?"),
            lambda: service.search_memory("door", session_id=session_id),
        )
        await self._note(calls[which]())
        self.outcomes[-1] = repr(self.outcomes[-1]).replace(session_id, "<a stranger>")

    async def _note(self, call: Awaitable[Any]) -> Any:
        try:
            found = await call
        except WarrenError as exc:
            self.outcomes.append(exc.body())
            return None
        self.outcomes.append(found)
        return found

    async def view(self) -> str:
        """Return all that the tenant has seen and sees now, without times; each id has a name in its place."""
        service = self.service
        found: list[object] = [await service.list(include_archived=archived) for archived in (False, True)]
        found += [await service.list(labels={"n": "1"})]
        found += [await service.usage(by=each) for each in ("model", "tenant", "label")]
        found += [await service.tenants()]
        found += [await service.search_memory(each, scope="project", limit=20) for each in WORDS]
        for session_id in self.sessions:
            for read in (service.read, service.history, service.inputs, service.peers):
                await self._note(read(session_id))
            await self._note(replay(service, session_id))
        names: dict[str, str] = {}
        text = TIME.sub("<time>", repr([found, self.outcomes]))
        return UUID.sub(lambda match: names.setdefault(match[0], f"<id {len(names)}>"), text)


async def alone(script: Sequence[Step], tenant: str, store: Any) -> str:
    """Return the view of a tenant that has the runtime for itself."""
    async with open_runtime(store=store, memory=memory_in(None)) as runtime:
        actor = Actor(runtime, tenant, lambda _number: new_session_id())
        for who, *step in script:
            if who == tenant:
                await actor.act(*step)  # type: ignore[arg-type] # the rest of a step
        return await actor.view()


async def together(script: Sequence[Step], store: Any) -> list[str]:
    """Return the views of both tenants on one runtime."""
    async with open_runtime(store=store, memory=memory_in(None)) as runtime:
        actors: dict[str, Actor] = {}

        def stranger(tenant: str) -> Callable[[int], str]:
            (other,) = set(TENANTS) - {tenant}

            def find(number: int) -> str:
                sessions = actors[other].sessions
                return sessions[number % len(sessions)] if sessions else new_session_id()

            return find

        for tenant in TENANTS:
            actors[tenant] = Actor(runtime, tenant, stranger(tenant))
        for who, *step in script:
            await actors[who].act(*step)  # type: ignore[arg-type] # as above
        return [await actors[tenant].view() for tenant in TENANTS]


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "in a file"])
@given(script=st.lists(ACTIONS, max_size=25))
@settings(max_examples=15)
async def test_each_tenant_sees_what_it_would_see_alone(*, stored: bool, script: list[Step]) -> None:
    """Results, errors, lists, histories, events, inboxes, peers and searches are the same but for ids and times."""
    script = [*BEGINNING, *script]
    with quick_folder() as folder:
        views = await together(script, folder / "both" if stored else None)
        for tenant, view in zip(TENANTS, views, strict=True):
            assert view == await alone(script, tenant, folder / tenant if stored else None)
    await trio.lowlevel.checkpoint()
