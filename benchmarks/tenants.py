"""What do tenants and their limits cost a durable turn? The processor time of turns with and without, in turns.

With them a tenant and its token have all limits, none of which is reached. Both run the same turns in stores of their
own, a hundred sessions at once. The figure is the median of the ratios of neighbours, in the time of the processor:
other programs on the machine disturb that less than the time of the clock. The process sets the garbage collector as
`warren serve` does.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, SessionService, StoreConfig, open_supervisor
from warren.base.principals import LOCAL, OWN_SCOPES, Principal
from warren.base.tenant_limits import TenantLimits, TokenLimits
from warren.transport.cli.process.tuning import tune

ROUNDS: Final = 11
SESSIONS: Final = 100
TURNS: Final = 30
GOAL: Final = 0.97
PLENTY: Final = 10**12
TENANT: Final = TenantLimits(**dict.fromkeys(attrs.fields_dict(TenantLimits), PLENTY))
TOKEN: Final = TokenLimits(**dict.fromkeys(attrs.fields_dict(TokenLimits), PLENTY))
KINDS: Final = {
    "without": (LOCAL, {}),
    "tenant": (Principal("acme", "ann"), {"acme": TENANT}),
    "tenant_and_token": (Principal("acme", "ci", OWN_SCOPES, TOKEN), {"acme": TENANT}),
}


async def _turns(service: SessionService, session_id: str, count: int) -> None:
    for _ in range(count):
        await service.start_turn(session_id, "Go on, please.")


async def _run(folder: Path, kind: str) -> float:
    """Return the microseconds of processor time of a turn."""
    principal, tenants = KINDS[kind]
    config = Config(store=StoreConfig(folder), model="fixed", provider="fixed", tenants=tenants)
    async with open_supervisor(config, providers={"fixed": FixedModel()}) as runtime:
        service = runtime if principal is LOCAL else runtime.as_(principal)
        ids = [(await service.create_session(None)).session_id for _ in range(SESSIONS)]
        begun = time.process_time()
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_turns, service, session_id, TURNS)
        return (time.process_time() - begun) / (SESSIONS * TURNS) * 1e6


def main() -> None:
    """Print the processor time of a turn of each kind."""
    tune()
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        numbers = itertools.count()
        for _ in range(ROUNDS):
            for kind, found in took.items():
                found.append(trio.run(_run, Path(name) / str(next(numbers)), kind))
    figures = {kind: {"cpu_us_of_a_turn": round(statistics.median(found))} for kind, found in took.items()}
    goals = []
    for kind in ("tenant", "tenant_and_token"):
        ratios = [without / found for without, found in zip(took["without"], took[kind], strict=True)]
        what = f"processor time of a durable turn without tenants, over that with {kind}"
        goals.append(Goal(what, statistics.median(ratios), ">=", GOAL, (min(ratios), max(ratios))))
    report("What do tenants and their limits cost a durable turn?", figures, goals)


if __name__ == "__main__":
    main()
