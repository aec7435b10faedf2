"""Bad input of every kind, and the field that the error has to name."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from tests.parity.surface import CREATE, REGISTER, REPLAY, TURN
from tests.support.completions import token_for

SESSION: Final = "the session's id goes here"
HUGE: Final = 2**64
TOKEN: Final = token_for("a session of another store")
COMMANDS: Final = ("cli", "cli-server")
"""Surfaces of texts: any text is the name of a session, a label or a mode that is not given."""


@attrs.frozen
class Bad:
    """One bad input.

    Attributes:
        operation: of the table of methods.
        params: its parameters.
        path: of the bad one.
        but: surfaces that it is no error for, or another one: a notification of ACP has no answer, the command line
            searches the project where no session is named, a prompt of Meerkat's may be a list.
    """

    operation: str
    params: Mapping[str, Any]
    path: str
    but: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return what it is, for the names of tests."""
        return f"{self.operation} {dict(self.params)}"

    def of(self, session_id: str) -> dict[str, Any]:
        """Return the parameters for a session that exists."""
        return {name: session_id if value == SESSION else value for name, value in self.params.items()}


def _first(path: str, *but: str, **params: Any) -> Bad:
    return Bad(CREATE, {"prompt": "hi", **params}, path, but)


def _next(path: str, *but: str, **params: Any) -> Bad:
    return Bad(TURN, {"session_id": SESSION, "prompt": "hi", **params}, path, but)


def _about(operation: str, path: str, *but: str, **params: Any) -> Bad:
    return Bad(operation, {"session_id": SESSION, **params}, path, but)


BAD: Final = (
    Bad(CREATE, {}, "$.prompt"),
    _first("$.prompt", prompt=""),
    _first("$.prompt", prompt=" \n\t"),
    _first("$.prompt", prompt=7),
    _first("$.prompt", "meerkat", prompt=["hi"]),
    _first("$.model", model=""),
    _first("$.model", model=["echo"]),
    _first("$.model", model="no-such-model"),
    _first("$.provider", provider="no-such-provider"),
    _first("$.provider", provider=" "),
    _first("$.system_prompt", system_prompt={"a": 1}),
    _first("$.max_tokens", max_tokens=0),
    _first("$.max_tokens", max_tokens=-1),
    _first("$.max_tokens", max_tokens=1.5),
    _first("$.max_tokens", max_tokens="many"),
    _first("$.max_tokens", max_tokens=True),
    _first("$.max_tokens", max_tokens=HUGE),
    _first("$.temperature", temperature=-0.1),
    _first("$.temperature", temperature=2.5),
    _first("$.temperature", temperature="warm"),
    _first("$.temperature", temperature=True),
    _first("$.top_p", top_p=0),
    _first("$.top_p", top_p=1.01),
    _first("$.top_p", top_p=[0.5]),
    _first("$.effort", effort="utmost"),
    _first("$.reasoning_tokens", reasoning_tokens=0),
    _first("$.fallback", fallback="echo"),
    _first("$.fallback[1]", fallback=["echo", 2]),
    _first("$.fallback[1]", fallback=["echo", "no-such-model"]),
    _first("$.fallback", fallback=["echo"] * 17),
    _first("$.hosted_tools", hosted_tools=["web_search"]),
    _first("$.hosted_tools", hosted_tools={f"tool_{number}": {} for number in range(65)}),
    _first("$.hosted_tools.web_search", hosted_tools={"web_search": True}),
    _first("$.labels", labels=["a"]),
    _first("$.labels.team", labels={"team": ["red"]}),
    _first("$.labels.team", labels={"team": None}),
    _first("$.labels", labels={f"label-{number}": "x" for number in range(65)}),
    _first("$.labels", labels={"team": "x" * 20_000}),
    _first("$.title", title=" "),
    _first("$.title", title="x" * 201),
    _first("$.idempotency_key", idempotency_key=""),
    _first("$.idempotency_key", idempotency_key="k" * 201),
    _first("$.idempotency_key", idempotency_key=["k"]),
    _first("$.budget", budget="all"),
    _first("$.budget.max_steps", budget={"max_steps": 0}),
    _first("$.budget.max_steps", budget={"max_steps": "few"}),
    _first("$.budget.max_steps", budget={"max_steps": HUGE}),
    _first("$.budget.max_tokens", budget={"max_tokens": -5}),
    _first("$.budget.max_cost", budget={"max_cost": 0}),
    _first("$.budget.max_cost", budget={"max_cost": "much"}),
    _first("$.budget.max_seconds", budget={"max_seconds": 0}),
    _first("$.budget.max_seconds", budget={"max_seconds": "soon"}),
    _first("$.budget.max_tool_calls", budget={"max_tool_calls": 0}),
    _first("$.budget.max_money", budget={"max_money": 1}),
    _first("$.compaction.auto_compact_threshold", compaction={"auto_compact_threshold": 0}),
    _first("$.compaction.recent_turn_budget", compaction={"recent_turn_budget": -1}),
    _first("$.compaction.max_summary_tokens", compaction={"max_summary_tokens": "short"}),
    _first("$.compaction.window", compaction={"window": HUGE}),
    _first("$.compaction.style", compaction={"style": "brief"}),
    _first("$.tools", tools="look"),
    _first("$.tools[0]", tools=["no_such_tool"]),
    _first("$.tools[1]", tools=["look", 2]),
    _first("$.tools", tools=["look"] * 1_001),
    _next("$.fallback", fallback=["echo"] * 17),
    _next("$.hosted_tools", hosted_tools={f"tool_{number}": {} for number in range(65)}),
    _first("$.nonsense", nonsense=1),
    _first("$.overrides", overrides=["shell"]),
    _first("$.overrides.shell", overrides={"shell": "on"}),
    _first("$.overrides.shell", overrides={"shell": True}),
    _first("$.overrides.builtins", overrides={"builtins": "enable"}),
    _first("$.overrides.nonsense", overrides={"nonsense": "enable"}),
    _first("$.approvals", approvals="ask"),
    _first("$.approvals.mcp", approvals={"mcp": "perhaps"}),
    _first("$.approvals.nonsense", approvals={"nonsense": "ask"}),
    _first("$.peer", peer="ann"),
    _first("$.peer.name", peer={"name": "an n"}),
    _first("$.peer.name", peer={"name": "a" * 65}),
    _first("$.peer.name", peer={"trusts": []}),
    _first("$.peer.trusts", peer={"name": "ann", "trusts": "bob"}),
    _first("$.peer.trusts[1]", peer={"name": "ann", "trusts": ["bob", ""]}),
    _first("$.peer.keep_alive", peer={"name": "ann", "keep_alive": "yes"}),
    _first("$.peer.nonsense", peer={"name": "ann", "nonsense": 1}),
    Bad(TURN, {"prompt": "hi"}, "$.session_id"),
    _next("$.session_id", session_id=5),
    _next("$.session_id", session_id=[]),
    Bad(TURN, {"session_id": SESSION}, "$.prompt"),
    _next("$.prompt", prompt=""),
    _next("$.prompt", prompt={"text": "hi"}),
    _next("$.model", model="no-such-model"),
    _next("$.model", model=" "),
    _next("$.model", model=7),
    _next("$.provider", provider="no-such-provider"),
    _next("$.provider", provider=["echo"]),
    _next("$.max_tokens", max_tokens=HUGE),
    _next("$.temperature", temperature=3),
    _next("$.top_p", top_p=-1),
    _next("$.budget.max_tokens", budget={"max_tokens": 0}),
    _next("$.system_prompt", system_prompt="it has one"),
    _next("$.overrides.shell", overrides={"shell": "on"}),
    _next("$.overrides.mcp", overrides={"mcp": "enable"}),
    _next("$.approvals.shell", approvals={"shell": "perhaps"}),
    _next("$.mode", mode="later"),
    _next("$.mode", "acp", *COMMANDS, mode=None),
    _next("$.mode", mode=["queue"]),
    _next("$.idempotency_key", idempotency_key="k"),
    _next("$.idempotency_key", mode="queue", idempotency_key=" "),
    _next("$.idempotency_key", mode="steer", idempotency_key="k" * 201),
    _next("$.idempotency_key", mode="queue", idempotency_key=5),
    _next("$.not_before", not_before="2126-01-01T00:00:00+00:00"),
    _next("$.not_before", mode="steer", not_before="2126-01-01T00:00:00+00:00"),
    _next("$.not_before", mode="queue", not_before="tomorrow"),
    _next("$.not_before", mode="queue", not_before="2126-01-01T00:00:00"),
    _next("$.not_before", mode="queue", not_before=["2126-01-01T00:00:00+00:00"]),
    _next("$.peer", peer={"name": "ann"}),
    Bad("session/list", {"limit": 0}, "$.limit"),
    Bad("session/list", {"limit": 1_001}, "$.limit"),
    Bad("session/list", {"limit": "ten"}, "$.limit"),
    Bad("session/list", {"offset": -1}, "$.offset"),
    Bad("session/list", {"offset": 2**53 + 1}, "$.offset"),
    Bad("session/list", {"labels": "red"}, "$.labels"),
    Bad("session/list", {"include_archived": "perhaps"}, "$.include_archived"),
    Bad("session/list", {"turn_state": "asleep"}, "$.turn_state"),
    Bad("session/list", {"nonsense": "1"}, "$.nonsense"),
    _about("session/history", "$.limit", limit=0),
    _about("session/history", "$.offset", offset="first"),
    _about("session/read", "$.nonsense", nonsense="1"),
    Bad("session/read", {}, "$.session_id"),
    Bad("session/read", {"session_id": 5}, "$.session_id"),
    Bad("session/archive", {"session_id": {"id": 1}}, "$.session_id"),
    Bad("session/delete", {"session_id": False}, "$.session_id"),
    Bad("session/resume", {"session_id": 0}, "$.session_id"),
    Bad("turn/interrupt", {"session_id": 1.5}, "$.session_id", ("acp", *COMMANDS)),
    _about("session/compact", "$.instructions", instructions=["short"]),
    _about("session/inject_context", "$.text"),
    _about("session/inject_context", "$.text", text=" \n"),
    _about("session/inject_context", "$.text", text=["it rains"]),
    _about("session/inject_context", "$.source", text="it rains", source=""),
    _about("session/inject_context", "$.idempotency_key", text="it rains", idempotency_key="k" * 201),
    _about("session/inject_context", "$.mode", text="it rains", mode="steer"),
    Bad("session/inputs", {"session_id": 7}, "$.session_id"),
    _about("session/inputs", "$.limit", limit="7"),
    _about("session/withdraw", "$.input_id"),
    _about("session/withdraw", "$.input_id", input_id="no such input"),
    _about("session/withdraw", "$.input_id", input_id=[1]),
    _about("tool/approve", "$.decision", "sdk", call_id="c", decision="perhaps"),
    _about("tool/approve", "$.decision", "sdk", call_id="c", decision=True),
    _about("tool/approve", "$.call_id", call_id=5, decision="allow"),
    _about("tool/approve", "$.reason", call_id="c", decision="allow", reason=5),
    Bad("tool/complete", {"result": 1}, "$.token"),
    Bad("tool/complete", {"token": 5, "result": 1}, "$.token"),
    Bad("tool/complete", {"token": "a token", "result": 1}, "$.token"),
    Bad("tool/complete", {"token": TOKEN, "result": 1}, "$.token"),
    Bad("tool/complete", {"token": TOKEN}, "$.result"),
    Bad("tool/complete", {"token": TOKEN, "result": 1, "is_error": "yes"}, "$.is_error"),
    Bad("approvals/list", {"limit": 0}, "$.limit"),
    Bad("approvals/list", {"limit": "ten"}, "$.limit"),
    Bad("approvals/list", {"offset": -1}, "$.offset"),
    Bad("schedule/create", {"every": "1h"}, "$.prompt"),
    Bad("schedule/create", {"prompt": " ", "every": "1h"}, "$.prompt"),
    Bad("schedule/create", {"prompt": "hi"}, "$.at"),
    Bad("schedule/create", {"prompt": "hi", "at": "soon"}, "$.at"),
    Bad("schedule/create", {"prompt": "hi", "at": "2020-01-01T00:00:00Z"}, "$.at"),
    Bad("schedule/create", {"prompt": "hi", "every": 5}, "$.every"),
    Bad("schedule/create", {"prompt": "hi", "every": "0s"}, "$.every"),
    Bad("schedule/create", {"prompt": "hi", "every": "1h", "cron": "* * * * *"}, "$.cron"),
    Bad("schedule/create", {"prompt": "hi", "cron": "0 0 31 2 *"}, "$.cron"),
    Bad("schedule/create", {"prompt": "hi", "cron": "* * * * *", "zone": "Mars/Olympus"}, "$.zone"),
    Bad("schedule/create", {"prompt": "hi", "every": "1h", "misfire": "never"}, "$.misfire"),
    Bad("schedule/create", {"prompt": "hi", "every": "1h", "overlap": 1}, "$.overlap"),
    Bad("schedule/create", {"prompt": "hi", "every": "1h", "paused": "no"}, "$.paused"),
    Bad(
        "schedule/create",
        {"prompt": "hi", "every": "1h", "new_session": {"temperature": 9}},
        "$.new_session.temperature",
    ),
    _about("schedule/create", "$.new_session", prompt="hi", every="1h", new_session={"title": "new"}),
    Bad("schedule/change", {"schedule_id": "none", "prompt": "hi"}, "$.schedule_id"),
    Bad("schedule/change", {"schedule_id": "none", "end": "2120-01-01T00:00:00Z"}, "$.end"),
    Bad("schedule/delete", {"schedule_id": "none"}, "$.schedule_id"),
    Bad("schedule/delete", {}, "$.schedule_id"),
    Bad("schedule/list", {"limit": 0}, "$.limit"),
    Bad("trigger/create", {}, "$.prompt"),
    Bad("trigger/create", {"prompt": " "}, "$.prompt"),
    Bad("trigger/create", {"prompt": "look at {bodies}"}, "$.prompt"),
    Bad("trigger/create", {"prompt": "hi", "scheme": "other"}, "$.scheme"),
    Bad("trigger/create", {"prompt": "hi", "secret": "swordfish"}, "$.secret"),
    Bad("trigger/create", {"prompt": "hi", "scheme": "github", "secret": " "}, "$.secret"),
    Bad("trigger/create", {"prompt": "hi", "overlap": 1}, "$.overlap"),
    Bad("trigger/create", {"prompt": "hi", "paused": "no"}, "$.paused"),
    _about("trigger/create", "$.new_session", prompt="hi", new_session={"title": "new"}),
    Bad("trigger/change", {"trigger_id": "none", "prompt": "hi"}, "$.trigger_id"),
    Bad("trigger/change", {"trigger_id": "none", "prompt": "{x}"}, "$.prompt"),
    Bad("trigger/change", {"trigger_id": "none", "secret": "x", "new_secret": True}, "$.new_secret"),
    Bad("trigger/delete", {"trigger_id": "none"}, "$.trigger_id"),
    Bad("trigger/delete", {}, "$.trigger_id"),
    Bad("trigger/list", {"limit": 0}, "$.limit"),
    _about("peer/send", "$.session_id", to="bob", body="it has no name"),
    _about("peer/send", "$.to", "sdk", to=["bob"], body="hi"),
    _about("peer/send", "$.body", "sdk", to="bob"),
    _about("peer/send", "$.body", "sdk", to="bob", body=" "),
    _about("peer/send", "$.kind", "sdk", to="bob", body="hi", kind="shout"),
    _about("peer/send", "$.params", "sdk", to="bob", body="hi", params={"a": 1}),
    _about("peer/send", "$.params", "sdk", to="bob", body="hi", kind="request", params="a"),
    _about("peer/send", "$.request_id", "sdk", to="bob", body="hi", kind="response"),
    _about("peer/send", "$.request_id", "sdk", to="bob", body="hi", request_id="r"),
    _about("peer/send", "$.status", "sdk", to="bob", body="hi", kind="response", request_id="r"),
    Bad("peer/list", {"session_id": []}, "$.session_id"),
    _about("session/fork", "$.at", at=-1),
    _about("session/fork", "$.at", at="begin"),
    _about("session/fork", "$.at", at=1_000),
    _about("session/fork", "$.labels.team", labels={"team": None}),
    _about("session/label", "$.labels.team", *COMMANDS, labels={"team": 7}),
    _about("session/label", "$.labels", labels="red"),
    _about("session/label", "$.labels", labels={"x" * 20_000: "red"}),
    _about("session/fork", "$.labels", labels={f"label-{number}": "x" for number in range(65)}),
    _about("session/label", "$.title", title=" "),
    _about("session/fork", "$.title", title="x" * 201),
    _about(REPLAY, "$.after_seq", after_seq=-1),
    _about(REPLAY, "$.after_seq", after_seq="begin"),
    _about(REPLAY, "$.after_seq", after_seq=1_000_000),
    _about(REPLAY, "$.after_seq", after_seq=HUGE),
    _about("memory/search", "$.query", query=""),
    _about("memory/search", "$.query", query=9),
    _about("memory/search", "$.limit", query="boat", limit=21),
    _about("memory/search", "$.limit", query="boat", limit=0),
    _about("memory/search", "$.scope", query="boat", scope="world"),
    Bad("memory/search", {"query": "boat"}, "$.session_id", COMMANDS),
    _about("memory/forget", "$.turn", turn=-1),
    _about("memory/forget", "$.turn", turn="all"),
    _about("memory/forget", "$.text_id", text_id="-1"),
    _about("memory/forget", "$.text_id", text_id="9" * 19),
    Bad("memory/forget", {"session_id": []}, "$.session_id"),
    Bad(REGISTER, {}, "$.tools"),
    Bad(REGISTER, {"tools": "look"}, "$.tools"),
    Bad(REGISTER, {"tools": [7]}, "$.tools[0]"),
    Bad(REGISTER, {"tools": [{"name": "look up", "description": "", "input_schema": {}}]}, "$.tools[0].name"),
    Bad(REGISTER, {"tools": [{"name": "look", "description": "", "input_schema": "any"}]}, "$.tools[0].input_schema"),
)
