"""The memory as a user meets it: real processes, a real store."""

import json
import signal
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.storage.memory.samples import SubjectEmbedder
from tests.transport.cli.compacting import LONG, OFTEN, shown
from tests.transport.cli.process import WITHOUT, Cli, one_line, without_extra
from tests.transport.cli.remembering import DOORS, FAILED, found, known, lines, talk
from tests.transport.cli.serving import connected, serve
from tests.transport.cli.terminals import Terminal
from tests.transport.providers.byte_server import serve as serve_http
from tests.transport.providers.embedding_server import Server
from warren.base.errors import InvalidParamsError
from warren.transport.cli.memory.lines import AddedText, Wanted, read_lines
from warren.transport.embedders import KNOWN

DISABLED = "Semantic memory is disabled (build without 'memory-store').\n"


def test_what_is_summarised_away_is_found(cli: Cli) -> None:
    """With --memory the text of a compacted exchange is found by its words, with the session it comes from."""
    session = talk(cli, "--memory")
    assert shown(cli, session)["state"]["compactions"] > 0
    hit = found(cli, "blue doors")[0]
    assert (DOORS in hit["content"], hit["session_id"]) == (True, session)
    for name in (session, session[-8:], "last"):
        assert found(cli, "blue doors", "--session", name) == [hit]
    assert found(cli, "blue doors", "--session", "another") == []


def test_the_memory_is_off_by_default(cli: Cli) -> None:
    """Without --memory, or with --no-memory against the environment, nothing is remembered and no folder is made."""
    session = talk(cli)
    assert shown(cli, session)["state"]["compactions"] > 0
    cli.run("resume", session, f"x {LONG}", "--no-memory", *OFTEN, env={"WARREN_MEMORY": "1"})
    assert not (cli.folder / ".rkat" / "memory").exists()


@pytest.mark.parametrize(("option", "file"), [("1", ""), ("", "memory = true\nembedder = 'bag-of-words'\n")])
def test_it_is_turned_on_from_afar(cli: Cli, option: str, file: str) -> None:
    """A variable or the configuration file does what the option does."""
    (cli.folder / ".rkat").mkdir()
    (cli.folder / ".rkat" / "config.toml").write_text(file)
    assert cli.run("run", "hi", env={"WARREN_MEMORY": option} if option else {}).code == 0
    assert (cli.folder / ".rkat" / "memory" / "memory.sqlite3").exists()
    stats = cli.run("memory", "stats", "--output", "json").data
    assert stats["embedder"] == ("bag-of-words" if file else "bm25")


def test_a_deleted_session_is_forgotten(cli: Cli) -> None:
    """Deleting a session drops its memories and keeps those of others; nothing is made where nothing was."""
    session = talk(cli, "--memory")
    known(cli)
    assert cli.run("sessions", "delete", session).code == 0
    assert [hit["session_id"] for hit in found(cli, "blue doors")] == ["added"]
    cli.run("run", "x", "--store", "plain")
    assert cli.run("sessions", "delete", "last", "--store", "plain").code == 0
    assert not (cli.folder / "plain" / "memory").exists()


def test_search(cli: Cli) -> None:
    """Piped, a hit is a line of score, its parts, session, turn, id and text; nothing found is said on stderr."""
    known(cli)
    score, words, *rest = cli.run("memory", "search", "deployed").out.removesuffix("\n").split("\t")
    assert (rest[0], rest[1:3], rest[4:]) == ("-", ["s2", "4"], [FAILED])
    assert 0.5 < float(score) == pytest.approx((1 + float(words)) / 2, abs=1e-3)
    ended = cli.run("memory", "search", "zebra")
    assert (ended.code, ended.out, ended.err) == (0, "", "nothing found\n")
    assert found(cli, "doors", "--session", "s2", "--scope", "project")
    assert len(found(cli, "the doors of friday")) == 2
    assert len(found(cli, "the doors of friday", "--limit", "1")) == 1


def test_forget(cli: Cli) -> None:
    """A text is forgotten by the id of its hit, and all of a session by its name; the same input brings none back."""
    known(cli)
    (hit,) = found(cli, "deployed")
    ended = cli.run("memory", "forget", "s2", "--id", hit["text_id"])
    assert (ended.code, ended.out) == (0, "forgot 1\n")
    assert found(cli, "deployed") == []
    ended = cli.run("memory", "forget", "added", "--output", "json")
    assert (ended.code, json.loads(ended.out)) == (0, {"forgotten": 1})
    again = lines({"content": DOORS}, {"content": FAILED, "session_id": "s2", "turn": 4})
    assert cli.run("memory", "add", stdin=again).out == "added 0 of 2\n"
    assert found(cli, "the doors of friday deployed") == []
    noted = [json.loads(line) for line in cli.run("audit", "--output", "json").out.splitlines()]
    assert [(each["session_id"], each["details"]) for each in noted if each["action"] == "forget"] == [
        ("s2", {"text_id": hit["text_id"]}),
        ("added", {}),
    ]
    for name, more, code, problem in (
        ("nobody", (), 1, "SESSION_NOT_FOUND"),
        ("s2", ("--id", "first"), 2, "text_id"),
        ("s2", ("--turn", "-1"), 2, "turn"),
        ("s2", ("--store", "elsewhere"), 1, "SESSION_MEMORY_DISABLED"),
    ):
        ended = cli.run("memory", "forget", name, *more, "--output", "json")
        assert (ended.code, problem in ended.err) == (code, True), ended.err


def test_search_in_a_batch(cli: Cli) -> None:
    """Each query's line is answered by a line with its hits; what a line leaves out is as the options say."""
    known(cli)
    queries = lines(
        {"query": "doors friday"},
        {"query": "doors friday", "limit": 1},
        {"query": "doors friday", "session_id": "s2"},
        {"query": "doors friday", "session_id": "s2", "scope": "project"},
        {"query": "zebra"},
    )
    ended = cli.run("memory", "search", "--batch", stdin=queries + b"\n")
    answers = [[hit["session_id"] for hit in json.loads(line)] for line in ended.out.splitlines()]
    assert [len(answer) for answer in answers] == [2, 1, 1, 2, 0]
    assert answers[2] == ["s2"]
    assert set(json.loads(ended.out.splitlines()[0])[0]) == {
        "content",
        "score",
        "session_id",
        "turn",
        "text_id",
        "parts",
    }
    one = cli.run("memory", "search", "--batch", "--session", "s2", "--limit", "1", stdin=queries)
    assert [len(json.loads(line)) for line in one.out.splitlines()] == [1, 1, 1, 1, 0]


def test_a_batch_answers_as_it_is_asked(cli: Cli) -> None:
    """A program may wait for each answer before it asks again."""
    known(cli)
    running = cli.start("memory", "search", "--batch")
    assert running.process.stdin is not None
    for _ in range(2):
        running.process.stdin.write(lines({"query": "doors"}))
        running.process.stdin.flush()
        assert DOORS in running.read_until("]\n")
    assert running.end().code == 0


BROKEN = [(b"nonsense", "$", "is not JSON"), (b"\xff", "$", "is not JSON"), (b"[1]", "$", "must be an object")]
BAD_QUERIES = [
    (b"{}", "$.query", "is required"),
    (b'{"query": " "}', "$.query", "must not be empty"),
    (b'{"query": 1}', "$.query", "must be a string"),
    (b'{"query": "x", "limit": 21}', "$.limit", "must be from 1 to 20"),
    (b'{"query": "x", "limit": "1"}', "$.limit", "must be an integer"),
    (b'{"query": "x", "scope": "world"}', "$.scope", "must be one of"),
    (b'{"query": "x", "k": 1}', "$.k", "is not a known field"),
]
BAD_TEXTS = [
    (b"{}", "$.content", "is required"),
    (b'{"content": "\\t"}', "$.content", "must not be empty"),
    (b'{"content": 1}', "$.content", "must be a string"),
    (b'{"content": "x", "session_id": ""}', "$.session_id", "must not be empty"),
    (b'{"content": "x", "turn": -1}', "$.turn", "must be 0 or above"),
    (b'{"content": "x", "turn": 9223372036854775808}', "$.turn", "must be at most"),
    (b'{"content": "x", "sesion_id": "s"}', "$.sesion_id", "is not a known field"),
]
BAD_LINES = [(Wanted, *case) for case in (*BROKEN, *BAD_QUERIES)] + [
    (AddedText, *case) for case in (*BROKEN, *BAD_TEXTS)
]


@attrs.define
class Given:
    """Lines in a test's hand."""

    waiting: list[bytes]

    async def next(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return self.waiting.pop(0) if self.waiting else None


@pytest.mark.parametrize(("kind", "line", "path", "problem"), BAD_LINES)
async def test_a_bad_line(kind: type[AddedText | Wanted], line: bytes, path: str, problem: str) -> None:
    """It is refused by its line, blank ones counted, and by its field."""
    with pytest.raises(InvalidParamsError) as caught:
        async with aclosing(read_lines(Given([b"", line]), kind)) as read:
            await anext(read)
    assert caught.value.path == path
    assert caught.value.message.startswith("line 2: ")
    assert problem in caught.value.message


def test_a_bad_query_ends_a_batch(cli: Cli) -> None:
    """The hits of the lines before it are there, then an error with its line and field."""
    known(cli)
    given = lines({"query": "doors"}, {"query": "x", "scope": "session"}, {"query": "doors"})
    ended = cli.run("memory", "search", "--batch", stdin=given)
    assert (ended.code, ended.out.count("\n"), ended.err.count("\n")) == (2, 1, 1)
    assert "line 2: session_id: is required" in ended.err


def test_a_bad_text_ends_an_input(cli: Cli) -> None:
    """It is refused by line and field; the lines before it are remembered, those behind it are not."""
    given = lines({"content": DOORS}, {"content": 1}, {"content": FAILED})
    error = one_line(cli.run("memory", "add", stdin=given), 2)
    assert "line 2: content: must be a string; the lines before it are remembered" in error
    assert [hit["content"] for hit in found(cli, "the doors friday")] == [DOORS]


def test_adding_again_changes_nothing(cli: Cli) -> None:
    """The same input is remembered once; another turn or session of the same text is another memory."""
    known(cli)
    again = lines({"content": DOORS}, {"content": DOORS, "turn": 1}, {"content": DOORS, "session_id": "s2"})
    assert cli.run("memory", "add", "--output", "json", stdin=again).data == {"lines": 3, "added": 2}
    assert cli.run("memory", "add", stdin=b"").out == "added 0 of 0\n"
    assert cli.run("memory", "stats", "--output", "json").data["entries"] == 4


def test_adding_many(cli: Cli) -> None:
    """More texts than one transaction takes are all remembered, and in the index when it ends."""
    many = lines(*({"content": f"note {number} about subject{number}"} for number in range(600)))
    assert cli.run("memory", "add", stdin=many).out == "added 600 of 600\n"
    stats = cli.run("memory", "stats", "--output", "json").data
    assert (stats["entries"], stats["indexed"], stats["behind"], stats["rebuilt"]) == (600, 600, 0, None)
    assert [hit["content"] for hit in found(cli, "subject577", "--limit", "1")] == ["note 577 about subject577"]


def test_a_forgotten_session_takes_nothing(cli: Cli) -> None:
    """An error in a part says from which line on nothing is remembered."""
    session = talk(cli, "--memory")
    cli.run("sessions", "delete", session)
    error = one_line(cli.run("memory", "add", stdin=lines({"content": "late", "session_id": session})), 1)
    assert "line 1 and those behind it are not remembered" in error
    assert found(cli, "late") == []


def test_stats_and_rebuild(cli: Cli) -> None:
    """The index is counted and made anew; piped, that says nothing, and everything is found as before."""
    known(cli)
    out = cli.run("memory", "stats").out
    assert {"entries:         2", "sessions:        2", "embedder:        bm25"} <= set(out.splitlines())
    ended = cli.run("memory", "rebuild")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    stats = cli.run("memory", "rebuild", "--output", "json").data
    assert (stats["indexed"], stats["behind"]) == (2, 0)
    assert found(cli, "deployed")[0]["content"] == FAILED


def test_a_rebuild_shows_how_far_it_is(terminal: Terminal) -> None:
    """On a terminal there is a bar, full at the end."""
    known(terminal.cli)
    terminal.start("memory", "rebuild")
    code, screen = terminal.end()
    assert code == 0
    assert "indexing" in screen
    assert "100%" in screen


@pytest.mark.parametrize("args", [["search", "x"], ["search", "--batch"], ["stats"], ["rebuild"]])
def test_where_nothing_is_remembered(cli: Cli, args: list[str]) -> None:
    """Looking makes no memory: it says that there is none and what begins one, and both ways do."""
    text, json_ = cli.run("memory", *args), cli.run("memory", *args, "--output", "json")
    assert (text.code, json_.code, text.out, json_.out) == (1, 1, "", "")
    line, *hint = text.err.splitlines()
    assert line == "Error: there is no memory at .rkat/memory yet [SESSION_MEMORY_DISABLED]"
    assert json_.error["code"] == "SESSION_MEMORY_DISABLED"
    assert list(cli.folder.iterdir()) == []
    assert hint[0].startswith("`warren run --memory PROMPT` begins one")
    begun = cli.folder / "begun"
    assert cli.run("run", "--memory", "x", "--store", "begun").code == 0
    piped = json.loads(hint[-1].removeprefix("echo '").removesuffix("' | warren memory add"))
    assert cli.run("memory", "add", stdin=json.dumps(piped).encode()).code == 0
    for store in (begun, cli.folder / ".rkat"):
        assert cli.run("memory", "search", "door", "--store", str(store)).code == 0


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("usearch", ["run", "x", "--memory", "--ephemeral"]),
        ("numpy", ["run", "x", "--memory"]),
        ("Stemmer", ["serve", "--memory"]),
        ("apsw", ["run", "x", "--memory"]),
        ("usearch", ["memory", "search", "x"]),
        ("apsw", ["memory", "add"]),
        ("numpy", ["memory", "stats"]),
        ("Stemmer", ["memory", "rebuild"]),
    ],
)
def test_without_the_extra(cli: Cli, module: str, args: list[str]) -> None:
    """Whatever is missing of the extra, a line says that the memory is disabled, one how to get it; nothing is made."""
    without_extra(cli.run(module, *args, python=("-c", WITHOUT)), DISABLED, "memory-store")
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["search"], "give either a QUERY or --batch"),
        (["search", "x", "--batch"], "give either a QUERY or --batch"),
        (["search", "x", "--scope", "session"], "--scope session needs --session"),
        (["search", "x", "--limit", "21"], "'--limit'"),
        (["stats", "--embedder", "nobody"], f"'nobody' is unknown; there are {KNOWN}"),
        (["stats", "--embedder", "local:"], f"'local:' is unknown; there are {KNOWN}"),
    ],
)
def test_bad_usage(cli: Cli, args: list[str], problem: str) -> None:
    """A contradiction is refused as usage, with exit code 2."""
    ended = cli.run("memory", *args)
    assert ended.code == 2
    assert problem in " ".join(ended.err.split())


async def test_an_embedder_over_http(cli: Cli) -> None:
    """With --embedder openai:MODEL the vectors come from a server, and the index remembers whose they are."""
    server = Server()
    async with serve_http(server.handle) as url:
        run = partial(cli.run, env={"OPENAI_BASE_URL": url, "WARREN_EMBEDDER": "openai:mini"})
        given = partial(run, "memory", "add", stdin=lines({"content": DOORS}))
        assert (await trio.to_thread.run_sync(given)).out == "added 1 of 1\n"
        stats = (await trio.to_thread.run_sync(partial(run, "memory", "stats", "--output", "json"))).data
    assert (stats["embedder"], stats["dimensions"], stats["indexed"]) == ("openai:mini", 3, 1)
    assert [DOORS] in [request.body["input"] for request in server.seen]
    assert found(cli, "blue doors")[0]["content"] == DOORS


def subjects(texts: list[str]) -> dict[str, Any]:
    """Return what a server of a model says that knows three subjects."""
    model = SubjectEmbedder(base=0)
    return {"data": [{"index": at, "embedding": model.vector(text)} for at, text in enumerate(texts)]}


async def test_meaning_over_http(cli: Cli) -> None:
    """A text is found by what it means, through a server of vectors, in every command that searches."""
    async with serve_http(Server(answer=subjects).handle) as url:
        run = partial(cli.run, env={"OPENAI_BASE_URL": url, "WARREN_EMBEDDER": "openai:mini"})
        texts = lines({"content": "my cat sleeps"}, {"content": "an engine hums"}, {"content": DOORS})
        await trio.to_thread.run_sync(partial(run, "memory", "add", stdin=texts))
        asked = partial(run, "memory", "search", "pet", "--output", "json")
        hits = (await trio.to_thread.run_sync(asked)).data["hits"]
        assert [hit["content"] for hit in hits] == ["my cat sleeps"]
        batch = partial(run, "memory", "search", "--batch", stdin=lines({"query": "vehicle"}))
        found_by_batch = json.loads((await trio.to_thread.run_sync(batch)).out)
        assert [hit["content"] for hit in found_by_batch] == ["an engine hums"]


async def test_a_gateway_whose_embedder_is_away(cli: Cli) -> None:
    """A gateway over a memory with vectors starts without their server, says so, and searches by words."""
    async with serve_http(Server().handle) as url:
        run = partial(cli.run, env={"OPENAI_BASE_URL": url, "WARREN_EMBEDDER": "openai:mini"})
        await trio.to_thread.run_sync(partial(run, "memory", "add", stdin=lines({"content": DOORS})))
    env = {"OPENAI_BASE_URL": url, "WARREN_EMBEDDER": "openai:mini"}
    running, url = await trio.to_thread.run_sync(partial(serve, cli, "--memory", env=env))
    async with connected(url) as client:
        hits = (await client.call("memory/search", query="blue doors", scope="project"))["hits"]
        assert [hit["content"] for hit in hits] == [DOORS]
    running.signal(signal.SIGTERM)
    ended = running.end()
    assert ended.code == 0
    assert "texts get no vector and searches match words only" in ended.err


async def test_a_gateway_searches_and_forgets(cli: Cli) -> None:
    """`serve --memory` answers `memory/search` and `memory/forget`; without it clients get -32007.

    A forgotten text does not come back after a kill, a rebuild and the same input.
    """
    known(cli)
    running, url = serve(cli, "--memory")
    async with connected(url) as client:
        assert (await client.call("capabilities/get"))["memory_store"] is True
        hits = (await client.call("memory/search", query="deployed", scope="project"))["hits"]
        assert [(hit["content"], hit["session_id"], hit["turn"]) for hit in hits] == [(FAILED, "s2", 4)]
        assert await client.call("memory/forget", session_id="s2", text_id=hits[0]["text_id"]) == {"forgotten": 1}
        running.signal(signal.SIGKILL)
    running.end()
    assert cli.run("memory", "rebuild").code == 0
    assert cli.run("memory", "add", stdin=lines({"content": FAILED, "session_id": "s2", "turn": 4})).out.startswith(
        "added 0"
    )
    assert [hit["content"] for hit in found(cli, "deployed doors")] == [DOORS]
    _, url = serve(cli)
    async with connected(url) as client:
        refusal = await client.refused("memory/search", query="deployed", scope="project")
    assert (refusal["code"], refusal["data"]["code"]) == (-32007, "SESSION_MEMORY_DISABLED")


def test_the_store_is_the_named_one(cli: Cli, tmp_path: Path) -> None:
    """The memory is in the folder `memory` of --store."""
    cli.run("memory", "add", "--store", "elsewhere", stdin=lines({"content": DOORS}))
    assert (tmp_path / "elsewhere" / "memory" / "memory.sqlite3").exists()
    assert found(cli, "doors", WARREN_STORE="elsewhere")[0]["content"] == DOORS


async def test_a_server_without_its_memory(cli: Cli) -> None:
    """A memory file of garbage does not keep the gateway from serving; its health and stderr say what is wrong."""
    known(cli)
    (cli.folder / ".rkat" / "memory" / "memory.sqlite3").write_bytes(b"garbage" * 10_000)
    running, url = serve(cli, "--memory")
    async with connected(url) as client:
        assert (await client.call("session/create", prompt="hello"))["text"] == "hello"
        health = await client.call("health")
        assert (health["status"], health["memory"]["status"]) == ("degraded", "degraded")
        assert "is not a database" in health["memory"]["last_error"]
    running.process.send_signal(signal.SIGTERM)
    assert "the memory cannot be used, sessions run without it: " in running.end().err
