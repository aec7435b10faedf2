"""Goals that are out of reach, and why: the page shows them apart from those that are met."""

from collections.abc import Mapping
from typing import Final

_LOCK: Final = (
    "Raw SQLite spends its time in C. A turn spends it in Python, and the event loop and the writer's thread share the "
    "interpreter's lock: requests, events and their JSON take five times as long as the rows."
)
_STEPS: Final = (
    "Two commits more: each goes to the storage actor and back, and makes the session's row anew. A commit costs a "
    "third of a text turn, whatever it stores."
)
_ONE_PROCESSOR: Final = (
    "The ideal counts the model's time alone. Each turn takes the one event loop a fifth of a millisecond."
)
_GRAPH: Final = "The graph is written in C while it holds the interpreter's lock, some milliseconds at a time."
_DELEGATED: Final = (
    "Each child is a call of a tool as well: planned, kept as a wait, answered in the parent's inbox and settled, "
    "which a plain session is not."
)
_BARE: Final = (
    "The bare server sends the same bytes again and again; the gateway makes, numbers and encodes each event."
)
_USEARCH: Final = "USearch against another library on the same graph: the memory takes its index as it is."

LIMITS: Final[Mapping[str, str]] = {
    "1,000 sessions x 5 turns over HTTP, 50 ms, durable, wall over ideal": (
        "The ideal is 20,000 turns a second on one event loop; bare h11 alone manages 3,800 exchanges."
    ),
    "1,000 children over 1,000 plain sessions, processor time": _DELEGATED,
    "1,000 children over 1,000 plain sessions, wall time": _DELEGATED,
    "in-memory text turns/s, one session": (
        "A quarter is trio's scheduling; the rest is spread over events, plan and context, no part above a tenth."
    ),
    "text turn from asyncio, 1 session(s): processor time over trio": (
        "Each turn alone wakes two threads and takes a task on trio: 0.07 ms for a call that does nothing. Many turns "
        "at once share the wake-ups."
    ),
    "durable turns, 1 session(s), over raw apsw": (
        "Each turn alone changes threads twice and waits for its commit; raw SQLite stays in one thread."
    ),
    "durable turns, 100 session(s), over raw apsw": _LOCK,
    "durable turns/s at 100 sessions": _LOCK,
    "processor time of a turn with one call of a tool, steps kept over not kept": _STEPS,
    "turns/s with one call of a tool at 100 sessions, steps kept over not kept": _STEPS,
    "search p50 of pgvector over a file's, 20000 vectors, in a session": (
        "A file compares a session's few vectors in memory; PostgreSQL is a round trip away."
    ),
    "1,000 sessions x 5 turns x 50 ms, wall over ideal": _ONE_PROCESSOR,
    "10,000 sessions x 5 turns x 50 ms, wall over ideal": _ONE_PROCESSOR,
    "gateway messages/s over bare trio-websocket, 1 client(s)": _BARE,
    "gateway messages/s over bare trio-websocket, 100 client(s)": _BARE,
    "durable turns/s over WebSockets, 2 workers over 1 on 2 processors, 64 clients": (
        "Two workers and their clients share two processors, and one file has one writer at a time."
    ),
    "durable turn over WebSocket over the same turn embedded, processor time, 50 client(s)": (
        "Frames of trio-websocket and their JSON; the embedded turn has become cheaper than the frames."
    ),
    "GET /health over bare h11, processor time, 50 client(s)": "The report itself: bare h11 answers with a constant.",
    "idle live session, KB": (
        "A session keeps the task, the nursery and the cancel scope of its turns, so that a turn opens none of them."
    ),
    "files of one stored echo turn over a WebSocket": (
        "A file has one idea. The way leads through a connection, a call, a session, a turn, an event log and a store."
    ),
    "calls of one stored echo turn over a WebSocket": (
        "Each step of the protocol, of the turn and of its commit is a function that can be read alone."
    ),
    "instructions of an in-memory turn": (
        "A quarter is trio's own; the rest is the turn, its three tasks and five events."
    ),
    "instructions of a turn without metrics, over those with them": (
        "Counting costs a fixed number of instructions, and the turn around it has become shorter."
    ),
    "loop late p99 ms, 10000": _GRAPH,
    "search p50 ms, 100000": "All words of 100,000 texts are weighed by SQLite's full-text index.",
    "loop late p99 ms, 100000": _GRAPH,
    "graph: time of a search over hnswlib's": _USEARCH,
    "graph: recall@10 over hnswlib's": _USEARCH,
    "graph: time of a build over hnswlib's": _USEARCH,
}
"""For each goal, by its words, what keeps its figure from it."""
