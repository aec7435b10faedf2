"""The tables of `docs/security.md` about what a client can open are those of the bounds."""

from typing import Final

import attrs

from tests.docs import bounds_page
from tests.docs.bounds_page import BOUNDS, SHARED
from tests.docs.snippets import DOCS
from warren.settings.config import Limits
from warren.transport.access.config import GatewayConfig
from warren.transport.cli.settings.table import default_of

PAGE: Final = (DOCS / "security.md").read_text(encoding="utf-8")
NOT_OPENED: Final = {
    *("serve.port", "serve.metrics_port", "serve.workers"),
    # What the process does by itself, or models do.
    *(
        "limits.tool_threads",
        "limits.event_log",
        "limits.max_live",
        "limits.max_answer",
        "limits.max_memory",
        "limits.max_answer_calls",
        "limits.repeated_calls_note",
        "limits.repeated_calls",
        "limits.peer_hops",
        "limits.resumptions",
        "limits.background_calls",
        "limits.peer_rate",
    ),
}
"""Numbers among the settings that bound nothing of what a client opens."""


def test_the_page_has_the_bounds() -> None:
    """The tables are as `make docs` writes them now."""
    assert bounds_page.renewed(PAGE) == PAGE


def test_every_setting_is_in_a_table() -> None:
    """A new setting that bounds something is, too, or is said to bound nothing that clients open."""
    settings = {
        f"{table}.{field.name}"
        for table, cls in (("serve", GatewayConfig), ("limits", Limits))
        for field in attrs.fields(cls)
        if field.type in (int, int | None)
    }
    told = {each.setting for each in SHARED} | {each.bound for each in BOUNDS if isinstance(each.bound, str)}
    assert told | NOT_OPENED == settings


def test_what_is_opened_in_a_process_has_shares() -> None:
    """Each kind leaves room: a principal has less than its tenant, and that less than the process."""
    for each in SHARED:
        process, tenant, principal = (
            each.shares.bound(part, bounds_page.SOMEBODY) for part in ("process", "tenant", "token")
        )
        assert process == default_of(each.setting)
        assert principal < tenant < process
