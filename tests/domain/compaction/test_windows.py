"""Known model windows."""

import pytest

from warren.base.windows import Window
from warren.models.catalog import ModelEntry, known, window_of


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-haiku-4-5", 200_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("claude-sonnet-5", 1_000_000),
        ("claude-of-next-year", 200_000),
        ("anthropic/claude-sonnet-5", 1_000_000),
        ("gpt-4", 8_192),
        ("gpt-4o-mini", 128_000),
        ("gpt-4.1-mini", 1_047_576),
        ("gpt-5-mini", 272_000),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-5.4", 922_000),
        ("gpt-5.4-mini", 272_000),
        ("o3", 200_000),
        ("o1-mini", 128_000),
        ("echo", None),
        ("scripted:claude-play.json", None),
        ("my-claude-clone", None),
        ("", None),
    ],
)
def test_the_longest_beginning_decides(model: str, window: int | None) -> None:
    """A family has a window, a member may have another, an unknown model has none."""
    assert window_of(model) == window


def test_a_host_knows_better() -> None:
    """A host's own figure wins over the table under the name of the model, also for models that nobody knows."""
    own = {
        name: ModelEntry(window=window) for name, window in (("gpt-4o", 32_000), ("echo", 6_000), ("local/x", 8_000))
    }
    assert [window_of(model, own) for model in ("gpt-4o", "gpt-4o-mini", "echo", "local/x", "o3")] == [
        32_000,
        128_000,
        6_000,
        8_000,
        200_000,
    ]


def test_every_window_is_positive() -> None:
    """The table holds tokens."""
    assert min(entry.window or 0 for entry in known().values()) >= 8_192


@pytest.mark.parametrize(("window", "answer", "room"), [(1000, 0, 900), (1000, 100, 800), (1000, 32_000, 650)])
def test_the_room_leaves_space_for_the_answer(window: int, answer: int, room: int) -> None:
    """A tenth is for the estimate's error; an answer's cap counts up to a quarter of the window."""
    assert Window(window, answer).request == Window(window, answer).room == room


def test_tools_take_their_part_of_the_room() -> None:
    """Tools are a part of the request, so only its messages have less room."""
    window = Window(1_000, 100, 300)
    assert (window.request, window.room) == (800, 500)
