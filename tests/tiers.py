"""The two tiers of the suite: `make test` runs what stays in this process, `make test-all` also what leaves it.

A test of the second tier starts a process, needs a database server or a browser, or takes seconds. It has the marker
`outside`: by its own decorator, or by one of the lists below. A test without the marker that starts a process fails,
in either tier, so none slips into the first.
"""

import platform
import sys
from pathlib import PurePosixPath
from typing import Any, Final

import pytest

MARKER: Final = "outside"
LEFT: Final = "warren.tests.outside"
"""The audit event of a helper whose process or server may be running already."""
EVENTS: Final = frozenset({LEFT, "subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"})
PLACES: Final = (
    "actors/test_checking.py::test_a_store_in_a_database_is_examined_beside_its_sessions",
    "actors/hooks/test_command.py",
    "actors/hooks/test_sessions.py",
    "actors/tools/mcp",
    "actors/tools/test_interrupts.py",
    "actors/tools/test_shell.py",
    "actors/tools/test_shell_ends.py",
    "actors/tools/test_skills.py::test_without_the_extra",
    "actors/tools/test_wiring.py",
    "actors/tools/test_wiring_chaos.py",
    "benchmarks",
    "builds",
    "docs/test_nodes.py",
    "docs/test_operations.py",
    "docs/test_postgres.py",
    "docs/test_protocol.py::test_the_example_works",
    "docs/test_readme.py",
    "docs/test_rest.py",
    "docs/test_site.py",
    "docs/test_snippets.py::test_a_page_can_be_pasted",
    "docs/test_snippets.py::test_the_reader_sees_what_is_wrong",
    "domain/test_face.py",
    "overload",
    "parity/test_bad_input.py::test_the_bad_field_is_named[cli]",
    "parity/test_bad_input.py::test_the_bad_field_is_named[cli-server]",
    "parity/test_slow_readers.py::test_the_result_of_a_command_comes_last",
    "promises/test_answer_kills.py",
    "promises/test_background_kills.py",
    "promises/test_children_kills.py",
    "promises/test_client_tools.py",
    "promises/test_compaction_kills.py",
    "promises/test_compaction_random_kills.py",
    "promises/test_database_away.py",
    "promises/test_ends.py",
    "promises/test_failover.py",
    "promises/test_fencing.py",
    "promises/test_fork.py",
    "promises/test_gateway_kills.py",
    "promises/test_hooks_kills.py",
    "promises/test_inbox_kills.py",
    "promises/test_many_parked.py",
    "promises/test_many_waiting.py",
    "promises/test_outside.py",
    "promises/test_projection_kills.py",
    "promises/test_questions.py",
    "promises/test_real_time.py",
    "promises/test_resumed_streams.py",
    "promises/test_schedules.py",
    "promises/test_server_faults.py",
    "promises/test_stdio_tools.py",
    "promises/test_store_goes_back.py",
    "promises/test_tasks.py",
    "promises/test_turn_kills.py",
    "promises/test_triggers.py",
    "promises/test_two_processes.py",
    "promises/test_webhooks.py",
    "promises/test_two_releases.py",
    "promises/test_waiting_ends.py",
    "promises/test_waiting_workers.py",
    "service/test_timing.py::test_a_foreign_session_takes_the_queries_of_an_unknown_one",
    "storage/conformance/test_agreement.py",
    "storage/conformance/test_attachments.py::test_nobody_stores_a_turn_while_its_files_are_looked_at",
    "storage/conformance/test_nodes.py::test_a_process_of_an_older_release_is_listed",
    "storage/memory/test_copies.py::test_a_memory_with_vectors_goes_into_a_database_and_back",
    "storage/memory/test_flat.py::test_the_nearest_of_a_tenant_among_many_of_another[graph]",
    "storage/memory/test_graph_file.py",
    "storage/memory/test_imports.py",
    "storage/memory/test_postgres.py",
    "storage/memory/test_store.py::test_a_killed_process_loses_nothing_it_has_confirmed",
    "storage/memory/test_together.py",
    "storage/postgres",
    "storage/projection/test_database.py",
    "storage/test_audit.py",
    "storage/test_backup.py::test_a_restore_that_is_killed_is_not_half_a_store",
    "storage/test_backup.py::test_what_a_killed_backup_has_left_goes",
    "storage/test_copying.py::test_a_process_that_has_just_ended_is_waited_for",
    "storage/test_file.py::test_a_file_that_may_not_grow_is_a_full_disk",
    "storage/test_file.py::test_a_folder_that_may_not_be_written",
    "storage/test_file.py::test_a_read_only_disk",
    "storage/test_file.py::test_examining_a_store_beside_which_no_file_may_grow",
    "storage/test_file.py::test_opening_a_file_that_may_not_grow",
    "storage/test_own_process.py",
    "storage/test_leases.py::test_kill_loses_nothing_that_was_acknowledged",
    "surfaces/test_fuzz.py",
    "surfaces/test_proxies.py",
    "test_packaging.py",
    "transport/acp/test_docs.py",
    "transport/aio/test_processes.py",
    "transport/cli/test_help.py::test_bash_completes",
    "transport/cli/test_help.py::test_the_completion_scripts_ask_warren[bash]",
    "transport/cli/test_local_embedder.py",
    "transport/cli/test_parking.py",
    "transport/cli/test_workers.py",
    "transport/cluster/test_token_table.py",
    "transport/console",
    "transport/load/test_report.py::test_the_charts_in_a_browser",
    "transport/load/test_run.py",
    "transport/load/test_wire.py::test_the_answers_of_commits_are_lost_and_the_turns_are_stored",
    "transport/mcp/test_conformance.py",
    "transport/mcp/test_docs.py::test_the_python_example_runs_as_printed",
    "transport/mcp/test_late.py::test_a_gateway_begins_without_it",
    "transport/mcp/test_process.py",
    "transport/providers/test_independent_servers.py",
    "transport/providers/test_registry.py::test_offline_sessions_load_no_http",
    "transport/rest/test_again.py",
    "transport/rest/test_generated_clients.py",
    "transport/rest/test_openapi.py::test_the_gateway_keeps_to_its_document",
    "transport/stdio/test_meerkat_sdk.py",
    "transport/stdio/test_process.py",
)
"""Folders, modules and tests of the second tier: the beginnings of their names below `tests/`."""
LONG: Final = (
    "actors/session/test_inbox_interrupts.py::test_at_every_step",
    "actors/session/test_inbox_model.py",
    "actors/session/test_room.py::test_inputs_that_run_by_themselves_wait_for_room",
    "actors/test_leases.py::test_who_lapsed_once_is_alive_again",
    "actors/turn/test_never_stuck.py",
    "actors/turn/test_window_refusals.py::test_other_sessions_learn_from_a_refusal",
    "domain/structured/test_output.py::test_nothing_takes_for_ever",
    "domain/test_codec_round_trip.py::test_round_trip",
    "parity/test_nodes.py",
    "promises/test_compaction_long.py",
    "promises/test_disk.py::test_a_fault_at_every_call_of_a_commit",
    "promises/test_loop_steps.py::test_a_schema_delays_nobody",
    "promises/test_scripts.py",
    "service/test_two_tenants.py",
    "simulation",
    "storage/memory/test_damage.py::test_one_damaged_value",
    "storage/memory/test_tenants.py::test_vectors_of_others_do_not_decide_which_texts_are_weighed",
    "storage/test_damage.py::test_one_damaged_value",
    "storage/test_damage_pruning.py",
    "surfaces/test_tokens.py",
    "transport/gateway/test_heartbeat.py",
    "transport/gateway/test_slow.py",
    "transport/mcp/test_lines.py::test_a_client_that_does_not_read_is_not_read_either",
    "transport/providers/test_prompt_cache.py::test_each_request_of_200_turns_begins_with_the_one_before",
    "transport/providers/test_repaired_sessions.py::test_no_session_is_ever_stuck",
)
"""The same of tests that stay in this process, and take seconds: alone or with all their cases."""
SECOND: Final = frozenset((*PLACES, *LONG))
FIXTURES: Final = frozenset({"cli"})
"""Fixtures whose tests are of the second tier."""
PARAMETERS: Final = frozenset({"postgres", "two_on_postgres", "database", "katan", *"GHI"})
"""Words in the names of cases that are; G, H and I are parity's builds on a database."""


def leaves(what: str) -> None:
    """Tell the guard that a test is about to use something outside of this process."""
    sys.audit(LEFT, what)


class Guard:
    """Refuses processes to tests of the first tier.

    Attributes:
        item: the test that runs; None between tests.
        refused: what it tried to start.
    """

    def __init__(self) -> None:
        self.item: pytest.Item | None = None
        self.refused: list[str] = []

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Fail the test that runs if an event of the interpreter starts a process."""
        if event in EVENTS and self.item is not None and self.item.get_closest_marker(MARKER) is None:
            self.refused.append(f"{event}: {str(args)[:200]}")
            pytest.fail(self.verdict())

    def verdict(self) -> str:
        """Return why the test fails."""
        return f"a test of the first tier leaves this process ({self.refused[0]}); tests/tiers.py tells the tiers apart"


platform.platform()  # starts `uname` once in a process, and remembers
GUARD: Final = Guard()
sys.addaudithook(GUARD.audit)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second tier, before any are selected by their markers."""
    for item in items:
        if is_outside(item):
            item.add_marker(MARKER)


def is_outside(item: pytest.Item) -> bool:
    """Return whether one of the lists puts a test into the second tier."""
    path, *inner = item.nodeid.removeprefix("tests/").split("::")
    names = {path, *map(str, PurePosixPath(path).parents)}
    for part in inner:
        path += f"::{part}"
        names |= {path, path.partition("[")[0]}
    if not names.isdisjoint(SECOND):
        return True
    call = getattr(item, "callspec", None)
    parameters = () if call is None else call.id.split("-")
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or not PARAMETERS.isdisjoint(parameters)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Watch a test with its fixtures."""
    GUARD.item = item
    try:
        return (yield)
    finally:
        GUARD.item = None
        GUARD.refused.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Any:
    """Fail a test whose own code has swallowed the refusal."""
    result = yield
    if GUARD.refused:
        pytest.fail(GUARD.verdict())
    return result
