"""Conversations for the console, as scripted models play them."""

from typing import Any, Final

GUIDE: Final[dict[str, Any]] = {
    "loop": True,
    "steps": [
        {
            "reasoning": "The user wants a plan. The time of day matters, so I look at the clock before I answer.",
            "text": "I look at the clock first.",
            "tool_calls": [{"name": "datetime_now"}],
        },
        {
            "text": (
                "## A plan for the afternoon\n\nIt is **early** enough to dig. Three things:\n\n"
                "1. Check the soil with `probe --depth 40`.\n2. Dig along the *south* wall.\n3. Carry the earth.\n\n"
                "```sh\nprobe --depth 40 --unit cm\n```\n\n"
                "| part | hours |\n|---|---|\n| digging | 2 |\n| carrying | 1 |\n\n"
                "> Rain is expected at six.\n\nAsk me for [the rules](https://example.org/rules) if you need them."
            )
        },
        {"text": "Carry it behind the hedge: it is dry there, and nobody walks across."},
    ],
}
ASKING: Final[dict[str, Any]] = {
    "loop": True,
    "steps": [
        {"text": "I have to ask for the time.", "tool_calls": [{"name": "datetime_now", "id": "ask-1"}]},
        {"text": "Thank you, that is all I needed."},
    ],
}
NASTY_TEXT: Final = "<img src=x onerror=alert(1)> <script>alert(2)</script> [go](javascript:alert(3)) &lt;b&gt;"
NASTY: Final[dict[str, Any]] = {
    "loop": True,
    "steps": [
        {"reasoning": NASTY_TEXT, "chunks": [NASTY_TEXT]},
        {"chunks": ["x" * 1_000_000]},
    ],
}
SLOW: Final[dict[str, Any]] = {
    "loop": True,
    "steps": [{"chunks": [f"piece {number} " for number in range(3000)], "chunk_delay": 0.05}],
}
BUSY: Final[dict[str, Any]] = {
    "loop": True,
    "steps": [
        *({"text": f"Step {number}.", "tool_calls": [{"name": "datetime_now"}] * 20} for number in range(9)),
        {"text": "Done."},
    ],
}
"""One turn has 9 steps with twenty calls of a tool each, and a last one: about 960 events."""
PART: Final[dict[str, Any]] = {"loop": True, "steps": [{"text": "All is well here."}]}
BREAKS: Final[dict[str, Any]] = {"loop": True, "steps": [{"text": "I dig", "error": {"message": "the soil is frozen"}}]}


def delegating(*parts: tuple[str, str]) -> dict[str, Any]:
    """Return a conversation in which a child does each part: its title, and its model."""
    calls = [
        {"name": "delegate", "args": {"prompt": f"Do it: {title}", "title": title, "model": model}}
        for title, model in parts
    ]
    return {"loop": True, "steps": [{"text": "Others do that.", "tool_calls": calls}, {"text": "It is all done."}]}
