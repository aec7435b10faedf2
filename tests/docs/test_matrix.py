"""`docs/capability-matrix.md` against what the service does in each of the six builds."""

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.docs.snippets import DOCS
from tests.support.models import FunctionModel, reply
from warren import Config, SessionService, StoreConfig, WarrenError, open_supervisor
from warren.base.errors import NUMBERS, ErrorCode
from warren.compaction import PROMPT, CompactionConfig
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.transport.rpc.methods import METHODS

PAGE: Final = (DOCS / "capability-matrix.md").read_text(encoding="utf-8")
WORKS: Final = "works"
LONG: Final = "the key hangs by the blue door " * 100


@attrs.frozen
class Build:
    """The capabilities that are on in one of the builds."""

    store: bool = False
    memory: bool = False
    compaction: bool = False

    def config(self, folder: Path) -> Config:
        return Config(
            store=StoreConfig(folder) if self.store else None,
            memory=MemoryConfig(folder / "memory" if self.store else None) if self.memory else None,
            compaction=CompactionConfig() if self.compaction else None,
            provider="talker",
        )


BUILDS: Final[Mapping[str, Build]] = {
    "A": Build(),
    "B": Build(store=True),
    "C": Build(memory=True),
    "D": Build(compaction=True),
    "E": Build(store=True, memory=True),
    "F": Build(store=True, memory=True, compaction=True),
}


@attrs.frozen
class Scene:
    """The scene of an operation: a runtime, a session in its memory, and the id of one of an earlier process."""

    service: SessionService
    here: str
    before: str


Operation = Callable[[Scene], Awaitable[object]]


async def in_memory(scene: Scene) -> None:
    """Do what is done with a session that has an actor."""
    await scene.service.read(scene.here)
    await scene.service.history(scene.here)
    assert scene.here in [row.session_id for row in (await scene.service.list()).sessions]
    await scene.service.archive((await scene.service.create_session(None)).session_id)


async def change_in_memory(scene: Scene) -> None:
    """Label a session that has an actor, and go on from a fork of it."""
    assert (await scene.service.label(scene.here, {"a": "b"})).state.labels == {"a": "b"}
    fork = (await scene.service.fork(scene.here)).state
    assert fork.labels == {"a": "b"}
    await scene.service.start_turn(fork.session_id, "hello")


async def follow(service: SessionService, session_id: str) -> None:
    """Get a session's first event."""
    async with service.subscribe(session_id, after_seq=0) as events:
        assert (await anext(events)).seq == 1


async def interrupt_nothing(scene: Scene) -> None:
    """Interrupt a session without a turn."""
    await scene.service.interrupt(scene.here)


OPERATIONS: Final[Mapping[str, Operation]] = {
    "`create_session`, `start_turn`": lambda on: on.service.start_turn(on.here, "hello"),
    "`read`, `history`, `list`, `archive` of a session in memory": in_memory,
    "`interrupt` without a turn": interrupt_nothing,
    "`subscribe` to a session in memory, from its first event on": lambda on: follow(on.service, on.here),
    "`read` or `history` of a session of an earlier process": lambda on: on.service.history(on.before),
    "`start_turn` in a session of an earlier process": lambda on: on.service.start_turn(on.before, "hello"),
    "`fork`, `label` of a session in memory": change_in_memory,
    "`fork` of a session of an earlier process": lambda on: on.service.fork(on.before),
    "`label` of a session of an earlier process": lambda on: on.service.label(on.before, {"a": "b"}),
    "`resume` of a session of an earlier process": lambda on: on.service.resume(on.before),
    "`subscribe` to a session of an earlier process": lambda on: follow(on.service, on.before),
    "`create_session` with `compaction`": lambda on: on.service.create_session("hi", compaction=CompactionConfig()),
    "`compact`": lambda on: on.service.compact(on.here),
    "`search_memory`": lambda on: on.service.search_memory("door", scope="project"),
    "`delete` of any session": lambda on: on.service.delete(on.before),
}


async def answer(request: ModelRequest, _emit: object) -> ModelReply:
    """Answer briefly, and summarise more briefly."""
    last = request.messages[-1]
    return reply("a summary" if isinstance(last, UserMessage) and PROMPT[:40] in last.content else "an answer")


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading, without the head."""
    after = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in after.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_table_has_every_operation() -> None:
    """Neither does the page know of others, nor does it leave one out."""
    assert [row[0] for row in table("Operations")] == list(OPERATIONS)


@pytest.mark.parametrize("name", BUILDS)
async def test_each_cell_is_what_happens(name: str, tmp_path: Path) -> None:
    """In the build of its column the operation works, or is refused by that code."""
    config, providers = BUILDS[name].config(tmp_path), {"talker": FunctionModel(answer)}
    async with open_supervisor(config, providers=providers, environ={}) as service:
        before = (await service.create_session("hello")).session_id
    told, found = {}, {}
    async with open_supervisor(config, providers=providers, environ={}) as service:
        here = (await service.create_session(LONG)).session_id
        await service.start_turn(here, LONG)
        for row in table("Operations"):
            told[row[0]] = row[1 + list(BUILDS).index(name)]
            found[row[0]] = await outcome(OPERATIONS[row[0]], Scene(service, here, before))
    assert found == told


async def outcome(operation: Operation, scene: Scene) -> str:
    """Return what a cell would say."""
    try:
        await operation(scene)
    except WarrenError as exc:
        return f"`{exc.code.value}`"
    return WORKS


def test_the_capabilities_of_the_builds() -> None:
    """The first table says what each build is made of."""
    rows = {row[0]: row[2:] for row in table("Builds")}
    for name, build in BUILDS.items():
        assert [cell == "on" for cell in rows[name]] == [build.store, build.memory, build.compaction]


def test_the_codes_of_missing_capabilities() -> None:
    """The numbers of the page are those of the table of errors."""
    rows = {row[1].strip("`"): row[2:] for row in table("Errors if a capability is off")}
    disabled = {code.value for code in ErrorCode if code.value.endswith("_DISABLED")}
    assert set(rows) == disabled
    for code, cells in rows.items():
        numbers = NUMBERS[ErrorCode(code)]
        assert cells[:4] == [str(numbers.jsonrpc), str(numbers.http), str(numbers.acp), str(numbers.exit)]


def test_the_methods_that_need_a_capability() -> None:
    """The capability of each method in the table of methods is on the page."""
    listed = {
        extra: set(re.findall(r"`([a-z]+/[a-z]+)`", methods))
        for extra, methods, *_ in table("Methods that need a capability")
    }
    needed: dict[str, set[str]] = {}
    for method in METHODS.values():
        if method.capability is not None:
            needed.setdefault(f"`{method.capability}`", set()).add(method.name)
    assert listed == needed
