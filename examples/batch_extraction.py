"""Batch extraction: many letters become rows, some at a time, and a run that was cut off goes on where it was."""

import tempfile
from pathlib import Path
from typing import Any

import trio

from warren import Budget, Config, SessionService, StoreConfig, open_supervisor
from warren.testing import ScriptedModel, say

LETTERS = {
    "letter-1": "Please send five lamps to Ann in Oslo.",
    "letter-2": "Bert from Rome wants two chairs.",
    "letter-3": "One table, Cleo, Paris.",
}
ROW = {
    "type": "object",
    "properties": {"who": {"type": "string"}, "count": {"type": "integer"}, "article": {"type": "string"}},
    "required": ["who", "count", "article"],
}
AT_ONCE = 8
MODEL = ScriptedModel([say("Five lamps.", data={"who": "Ann", "count": 5, "article": "lamp"})])  # "gpt-4o-mini" is real


async def extract(service: SessionService, name: str, text: str, rows: dict[str, Any]) -> None:
    """Read one letter. The name is its key: a letter that was read in an earlier run is not asked about again."""
    result = await service.create_session(
        text,
        system_prompt="Extract the order.",
        output_schema=ROW,
        budget=Budget(max_tokens=5_000),
        idempotency_key=name,
        labels={"batch": "orders"},
    )
    rows[name] = result.structured_output


async def run(service: SessionService) -> dict[str, Any]:
    """Read all letters, so many at a time."""
    rows: dict[str, Any] = {}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(name: str, text: str) -> None:
        async with limit:
            await extract(service, name, text, rows)

    async with trio.open_nursery() as nursery:
        for name, text in LETTERS.items():
            nursery.start_soon(one, name, text)
    return rows


async def main() -> None:
    """Read the letters, and read them again: the second run makes no call of a model."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(store=StoreConfig(Path(folder)), model="reader")
        async with open_supervisor(config, providers={"reader": MODEL}) as service:
            first = await run(service)
            calls = len(MODEL.requests)
            again = await run(service)
            print(f"{len(first)} rows: {first['letter-1']}")
            print(f"the same again: {again == first}, {len(MODEL.requests) - calls} calls of the model")


if __name__ == "__main__":
    trio.run(main)
