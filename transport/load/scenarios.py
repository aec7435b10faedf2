"""Named plans for the most frequent questions."""

from typing import Final

from warren.transport.load.plan import BadClients, LoadPlan, Mix, Profile

SCENARIOS: Final = {
    "steady": LoadPlan(
        sessions=100,
        turns=10,
        think=0.2,
        mix=Mix(tools=0.2, interrupts=0.02, busy=0.02, disconnects=0.02, subscribers=0.1),
    ),
    "burst": LoadPlan(sessions=1_000, turns=1, profile=Profile(latency=0.05)),
    "soak": LoadPlan(
        sessions=100,
        arrival="soak",
        duration=600,
        think=0.5,
        mix=Mix(tools=0.2, interrupts=0.05, busy=0.05, disconnects=0.05, subscribers=0.1, compactions=0.02),
    ),
    "overload": LoadPlan(
        sessions=400,
        arrival="open",
        rate=500,
        duration=10,
        capacity=40,
        recovery=True,
        profile=Profile(latency=0.2, chunks=5, chunk_delay=0.01),
    ),
    "reconnect": LoadPlan(
        sessions=50,
        turns=5,
        profile=Profile(latency=0.02, chunks=20, chunk_delay=0.01),
        mix=Mix(disconnects=0.5, subscribers=0.2),
    ),
    "siege": LoadPlan(
        sessions=50,
        turns=20,
        think=0.2,
        bad_clients=BadClients(idle=300, slow=50, flood=3, huge=2),
    ),
}
