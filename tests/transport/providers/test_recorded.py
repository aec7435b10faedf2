"""Recorded answers of real servers are read as the vendors' own clients read them, and go back as they came."""

import json
import subprocess
import venv
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorded import official
from tests.recorded.corpus import Protocol, Recording, recordings
from tests.recorded.normal import Read, model_of, read, read_in_parts
from tests.recorded.replay import Replay, cut
from tests.recorded.telling import telling
from tests.transport.providers.byte_server import serve

SDKS: Final = ("openai==3.57.0", "anthropic==2.14.0", "google-genai==3.6.1")
SMALL: Final = 4096
"""Bytes of the recordings that are cut at any place."""


@attrs.frozen
class Difference:
    """A member in which Warren differs from a vendor's client on purpose.

    Attributes:
        names: a part of the names of the recordings.
        member: the member of `Normal`, or `types` for the request that follows.
        reason: the reason.
    """

    names: str
    member: str
    reason: str


DELIBERATE: Final[Sequence[Difference]] = (
    Difference("incomplete_partial_json_response", "calls", "the client mends arguments that were cut"),
    *(
        Difference("spliced-message-start", member, "what comes after the second beginning is the answer")
        for member in ("calls", "reasoning", "owed")
    ),
    *(
        Difference(name, "types", "the server's own item goes back verbatim, with members that the types do not have")
        for name in (
            "/xai-code-execution",
            "/xai-web-search",
            "/xai-x-search",
            "responses_model_web_search_tool_stream",
        )
    ),
    *(
        Difference(name, "shown", "the recording was abridged: its deltas are not the whole text")
        for name in ("/openai-phase.1.chunks", "/openai-shell-container.1.chunks")
    ),
)


def named() -> list[Any]:
    """Return the recordings of the suite as parameters."""
    return [pytest.param(name, id=name) for name in telling()]


@pytest.mark.parametrize("name", named())
async def test_telling(name: str) -> None:
    """A recording gives the expected answer however it is cut, and all that has to go back does, as it came."""
    expected, recording = telling()[name], recordings()[name]
    for seed in (None, 1, 2):
        (found,) = await read([recording], seed)
        assert found.normal == expected.normal
        assert found.shown
        assert missing(found, expected.owed) == []


def test_every_kind() -> None:
    """The suite has examples of each protocol, as streams, whole and refused."""
    kinds = Counter((recordings()[name].protocol, recordings()[name].kind) for name in telling())
    assert {protocol for protocol, _ in kinds} == official.READERS.keys()
    assert len(telling()) >= 60


def small() -> Sequence[str]:
    """Return the recordings of the suite that are short."""
    return [name for name in telling() if len(recordings()[name].body) < SMALL]


@settings(max_examples=settings().max_examples // 4)
@given(name=st.sampled_from(small()), places=st.lists(st.integers(1, SMALL), max_size=12))
async def test_cut_anywhere(name: str, places: Sequence[int]) -> None:
    """An answer whose body is cut at any bytes is the same."""
    body = recordings()[name].body.encode()
    ends = sorted({place for place in places if place < len(body)})
    parts = [body[begin:end] for begin, end in zip([0, *ends], [*ends, len(body)], strict=True)]
    assert await read_in_parts(recordings()[name], parts) == telling()[name].normal


PICTURE: Final = b64encode(bytes.fromhex("89504e470d0a1a0a") + bytes(3 * 1024 * 1024)).decode()
"""A picture of more bytes than a recording may have."""
PICTURES: Final[Mapping[Protocol, dict[str, Any]]] = {
    "gemini": {
        "candidates": [
            {
                "content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": PICTURE}}], "role": "model"},
                "finishReason": "STOP",
            }
        ]
    },
    "openai-chat": {
        "choices": [
            {
                "message": {
                    "content": "",
                    "images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}],
                },
                "finish_reason": "stop",
            }
        ]
    },
    "openai-responses": {
        "status": "completed",
        "output": [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PICTURE}],
    },
}


@pytest.mark.parametrize("protocol", [*PICTURES])
async def test_large_picture(protocol: Protocol) -> None:
    """A picture in an answer is a file of it, also a large one."""
    body = json.dumps(PICTURES[protocol])
    whole = Recording(protocol, protocol, "", 200, "application/json", {}, body)
    found = await read_in_parts(whole, cut(body.encode(), "picture"))
    assert (found.files, found.stop, found.error) == (1, "end_turn", None)


def missing(found: Read, owed: Iterable[str]) -> list[str]:
    """Return what is not in the request that follows, but has to be."""
    body = json.dumps(found.following, ensure_ascii=False)
    return [text for text in owed if json.dumps(text, ensure_ascii=False)[1:-1] not in body]


# -- all recordings, beside the vendors' own clients


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the vendors' clients into an environment of their own; return its Python."""
    folder = tmp_path_factory.mktemp("sdks") / "venv"
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *SDKS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"the clients cannot be had: {done.stderr[-300:]}")
    return python


async def ask(python: str, argument: str, rows: Iterable[Sequence[Any]]) -> dict[int, Any]:
    """Return what the vendors' clients say to each row."""
    command = [python, "-W", "ignore", str(official.__file__), argument]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = await trio.run_process(command, stdin=lines.encode(), capture_stdout=True)
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.soak
@pytest.mark.time_limit(1800)
async def test_official_clients(clients: str) -> None:
    """Each recording is read as the vendor's client reads it; the next request has what is owed, and is valid."""
    rows = [*recordings().values()]
    ours = await read(rows, seed=1)
    async with serve(Replay(rows)) as url:
        asked = ([n, each.protocol, model_of(each), each.kind] for n, each in enumerate(rows))
        theirs = await ask(clients, url, asked)
    followed = ([n, rows[n].protocol, each.following] for n, each in enumerate(ours) if each.following is not None)
    objections = await ask(clients, "types", followed)
    problems = [
        f"{rows[number].name} {problem}"
        for number, found in enumerate(ours)
        for problem in differences(rows[number], found, theirs[number], objections.get(number))
    ]
    assert not problems, "\n".join(problems)


def differences(recording: Recording, found: Read, theirs: dict[str, Any], objection: str | None) -> Iterator[str]:
    """Yield in what Warren differs from the vendor's client, but for what it does on purpose."""
    if "unread" in theirs:  # most often a server of another maker, which the client does not know
        return
    owed = theirs.pop("owed")
    own = attrs.asdict(found.normal)
    members = ("error",) if own["error"] or theirs["error"] else tuple(theirs)
    for member in members:
        if not alike(member, own[member], theirs[member]) and not deliberate(recording, member):
            yield f"{member}: {str(own[member])[:200]} for {str(theirs[member])[:200]}"
    if not found.shown and not deliberate(recording, "shown"):
        yield "shown: the pieces make another answer"
    if found.following is not None and not deliberate(recording, "owed"):
        yield from (f"owed: {text[:60]} does not go back" for text in missing(found, owed))
    if objection is not None and not deliberate(recording, "types"):
        yield f"types: {objection[:400]}"


def alike(member: str, own: Any, theirs: Any) -> bool:
    """Tell whether a member is the same. What the server does not tell, Warren estimates or assumes."""
    if (member == "usage" and (theirs is None or not theirs[0] or None in theirs)) or (member == "stop" and not theirs):
        return True
    return bool(json.loads(json.dumps(own)) == theirs)


def deliberate(recording: Recording, member: str) -> bool:
    """Tell whether Warren differs on purpose."""
    return any(each.names in recording.name and each.member == member for each in DELIBERATE)
