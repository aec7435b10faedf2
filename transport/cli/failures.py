"""Failed commands: one line or one JSON object on stderr, and an exit code of the error table."""

import traceback
from typing import Any, Final

import click

from warren.base import errors
from warren.transport.cli.groups import harmless
from warren.transport.cli.process.exits import INTERRUPTED
from warren.transport.cli.settings.options import Mode
from warren.transport.cli.terminal.json_lines import json_of
from warren.transport.cli.terminal.streams import Streams

PERSISTENCE_DISABLED: Final = "Session persistence is disabled (build without 'session-store')."
COMPACTION_DISABLED: Final = "Session compaction is disabled (build without 'session-compaction')."
MEMORY_DISABLED: Final = "Semantic memory is disabled (build without 'memory-store')."


def report(failure: BaseException, mode: Mode, streams: Streams) -> int:
    """Show an error to the user, and return the exit code.

    A mistake of the user, a refused operation and a bug are one line each; the traceback of a bug is shown only with
    `mode.verbose`.
    """
    match innermost(failure):
        case errors.WarrenError() as error:
            show_error(error, mode, streams)
            return error.numbers.exit
        case click.ClickException() as error:
            return _show_usage(harmless(error), mode, streams)
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case error:
            return _show_other(error_of(error), failure, mode, streams)


def error_of(failure: BaseException) -> errors.WarrenError:
    """Return a failure as an error for a client."""
    match innermost(failure):
        case errors.WarrenError() as error:
            return error
        case click.ClickException() as error:
            return errors.InvalidParamsError(harmless(error).format_message(), path=_path_of(error) or "$")
        case OSError() as error:
            return errors.AgentError(_system_error(error), cause="system")
        case error:
            return errors.AgentError(f"internal error: {type(error).__name__}: {error}", cause="internal")


def innermost(failure: BaseException) -> BaseException:
    """Return one exception of a group: a WarrenError if there is one, else Ctrl-C, else the first."""
    leaves = list(_leaves(failure))
    for kind in (errors.WarrenError, KeyboardInterrupt):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def show_error(error: errors.WarrenError, mode: Mode, streams: Streams) -> None:
    """Write an error to stderr: its body as JSON, or a line with its code, and advice below it."""
    body = error.body() | {"message": _canonical(error) or error.message}
    if mode.json:
        _write_body(body, streams)
        return
    suffix = f" (session {error.session_id})" if error.session_id and error.session_id not in error.message else ""
    message = error.message.removeprefix("$.")  # the path is for programs
    streams.note(_canonical(error) or f"Error: {message}{suffix} [{error.code}]", "red", **body)
    if "hint" in error.details:
        streams.note(error.details["hint"], "dim")


def _canonical(error: errors.WarrenError) -> str | None:
    """Return the advice for a missing capability."""
    match error:
        case errors.WarrenError(details={"extra": "postgres"}):
            return None
        case errors.PersistenceDisabledError():
            return PERSISTENCE_DISABLED
        case errors.CompactionDisabledError():
            return COMPACTION_DISABLED
        case errors.MemoryDisabledError() if error.details.keys() != {"hint"}:  # with that alone the store exists
            return MEMORY_DISABLED
    return None


def _show_usage(error: click.ClickException, mode: Mode, streams: Streams) -> int:
    if mode.json:
        path = _path_of(error)
        details = {"details": {"path": path}} if path else {}
        body = {"code": errors.ErrorCode.INVALID_PARAMS.value, "message": error.format_message(), "retryable": False}
        _write_body(body | details, streams)
    elif json_of(streams.err) is not None:
        streams.note(error.format_message(), "red", code=errors.ErrorCode.INVALID_PARAMS.value)
    else:
        error.show(streams.err)
    return error.exit_code


def _path_of(error: click.ClickException) -> str | None:
    match getattr(error, "param", None):
        case click.Option(opts=opts):
            return f"$.{max(opts, key=len).lstrip('-').replace('-', '_')}"
        case click.Parameter(name=name):
            return f"$.{name}"
    return getattr(error, "option_name", None)


def _show_other(error: errors.WarrenError, failure: BaseException, mode: Mode, streams: Streams) -> int:
    if mode.json:
        _write_body(error.body(), streams)
    else:
        streams.note(f"Error: {error.message}", "red")
    if mode.verbose:
        streams.note("".join(traceback.format_exception(failure)).rstrip())
    return 1


def _write_body(body: dict[str, Any], streams: Streams) -> None:
    # Imported late: usage errors need no other module.
    from warren.conversation import codec  # noqa: PLC0415

    streams.note(codec.encode(_writable(body)).decode())


def _writable(value: Any) -> Any:
    """Return data with raw bytes of file names and arguments (lone surrogates) in a form that JSON can hold."""
    if isinstance(value, dict):
        return {name: _writable(inner) for name, inner in value.items()}
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _system_error(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _leaves(failure: BaseException) -> list[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        return [leaf for inner in failure.exceptions for leaf in _leaves(inner)]
    return [failure]
