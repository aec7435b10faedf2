"""Bad input is refused with the field's name, on every surface that can be told it, and leaves nothing behind."""

from pathlib import Path
from typing import Final

import pytest

from tests.parity.bad_input import BAD, Bad
from tests.parity.outcome import Outcome
from tests.parity.stage import Stage, staged
from tests.parity.surface import Surface, UnsayableError
from tests.parity.surfaces import SURFACES
from tests.parity.world import BUILDS, Setting, World
from warren.base.errors import ErrorCode

LEAST: Final = {
    "sdk": 60,
    "client": 60,
    "websocket": 120,
    "stdio": 120,
    "meerkat": 50,
    "rest": 105,
    "mcp": 105,
    "acp": 6,
    "cli": 20,
    "cli-server": 20,
}
"""How many of them each surface can be told at least."""


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
async def test_the_bad_field_is_named(surface: Surface, tmp_path: Path) -> None:
    """INVALID_PARAMS, the surface's number for it and the path; afterwards the session is as it was."""
    world, wrong, said = World(BUILDS[-1], Setting(), tmp_path, not surface.per_process), [], 0
    async with staged(surface, world) as stage:
        session_id = stage.well(await stage.one.first_turn("hi")).data["session_id"]
        for bad in BAD:
            outcome = await _tell(stage, bad, session_id)
            if outcome is not None:
                said += 1
                wrong += _differences(stage, bad, outcome)
        assert not wrong, "\n".join(wrong)
        assert said >= LEAST[surface.name]
        async with world.truth() as service:
            assert [row.message_count for row in (await service.list()).sessions] == [2]


async def _tell(stage: Stage, bad: Bad, session_id: str) -> Outcome | None:
    """Return what comes of a bad input; None where it is not bad on this surface, or cannot be told."""
    if bad.operation not in stage.surface.can or stage.surface.name in bad.but:
        return None
    try:
        return await stage.one.call(bad.operation, **bad.of(session_id))
    except UnsayableError:
        return None


def _differences(stage: Stage, bad: Bad, outcome: Outcome) -> list[str]:
    try:
        stage.refused(outcome, ErrorCode.INVALID_PARAMS, path=bad.path)
    except AssertionError:
        return [f"{bad}: {outcome}"]
    return []
