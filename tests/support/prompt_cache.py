"""A model's server that keeps requests as Anthropic's documentation says, and asks for what Anthropic does."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from warren.conversation import codec

MOST_MARKS: Final = 4
LOOKBACK: Final = 20
SECONDS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0}
MARKED: Final = ("text", "image", "document", "tool_use", "tool_result")
"""The kinds of blocks that take a mark; a block of thinking takes none."""


class RefusedError(ValueError):
    """A request that the server answers with status 400."""


@attrs.define
class PromptCache:
    """The prompt cache of a server, as Anthropic documents it.

    A request is a row of blocks: its tools, its system prompt, its messages. A mark on a block asks the server to keep
    all up to this block. At each mark the server looks for the end of a kept row of blocks: at the block of the mark,
    and at the 19 blocks before. The longest row that it finds is read from the cache; the rest up to the last mark is
    written. A row that is read lives on for its time. Rows of fewer tokens than the minimum are not kept.

    Attributes:
        minimum: the fewest tokens that are kept.
        now: the time in seconds.
    """

    minimum: int = 1024
    now: float = 0.0
    _kept: dict[bytes, tuple[float, float]] = attrs.field(factory=dict)

    def usage(self, body: Mapping[str, Any]) -> dict[str, int]:
        """Take a request, and return its tokens as the protocol reports them. Raises RefusedError."""
        rows, tokens, times = [], [], []
        row, sum_ = hashlib.sha256(body["model"].encode()).digest(), 0
        for block, time in _blocks(body):
            row = hashlib.sha256(row + block).digest()
            sum_ += max(1, len(block) // 4)
            rows.append(row)
            tokens.append(sum_)
            times.append(time)
        marks = [at for at, time in enumerate(times) if time is not None and tokens[at] >= self.minimum]
        if sum(time is not None for time in times) > MOST_MARKS:
            raise RefusedError(f"a request has at most {MOST_MARKS} marks")
        if [time for time in times if time] != sorted((time for time in times if time), key=["1h", "5m"].index):
            raise RefusedError("marks of 1h come before those of 5m")
        found = max((at for mark in marks for at in self._looked_at(mark) if self._lives(rows[at])), default=-1)
        read = tokens[found] if found >= 0 else 0
        if found >= 0:
            lifetime = self._kept[rows[found]][1]
            self._kept[rows[found]] = self.now + lifetime, lifetime
        for mark in marks:
            lifetime = SECONDS[times[mark] or ""]
            self._kept[rows[mark]] = self.now + lifetime, lifetime
        created = max(0, tokens[marks[-1]] - read) if marks else 0
        return {
            "input_tokens": sum_ - read - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": read,
        }

    def _looked_at(self, mark: int) -> range:
        return range(max(0, mark - LOOKBACK + 1), mark + 1)

    def _lives(self, row: bytes) -> bool:
        return self._kept.get(row, (-1.0, 0.0))[0] >= self.now


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[bytes, str | None]]:
    """Yield the blocks of a request without their marks, each with the time of its mark."""
    for tool in body.get("tools", ()):
        yield _without_mark(tool, "tool")
    for block in body.get("system", ()):
        yield _without_mark(block, "system")
    choice = codec.encode(body.get("tool_choice")).decode()
    for message in body["messages"]:
        for block in message["content"]:
            if "cache_control" in block and block["type"] not in MARKED:
                raise RefusedError(f"a block of {block['type']} takes no mark")
            yield _without_mark(block, f"{choice} {message['role']}")


def _without_mark(block: Mapping[str, Any], place: str) -> tuple[bytes, str | None]:
    mark = block.get("cache_control")
    if mark is not None and mark.get("type") != "ephemeral":
        raise RefusedError("a mark is ephemeral")
    rest = {name: value for name, value in block.items() if name != "cache_control"}
    return f"{place} ".encode() + codec.encode_whole(rest), None if mark is None else mark.get("ttl", "5m")
