"""The raw answer of a hook, before the dialect reads it."""

from warren.base.values import frozen


class HookError(Exception):
    """A hook has failed, or has taken too long; the text says how."""


@frozen
class Told:
    """The answer of a hook.

    Attributes:
        code: the exit code: 0 for success, 2 to block.
        out: the text on stdout, or the body of the response.
        err: the text on stderr.
        plain: whether an `out` that is no JSON is a text for the model; if not, it is a failure.
    """

    code: int
    out: str = ""
    err: str = ""
    plain: bool = True
