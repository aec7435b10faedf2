"""`value`: attrs classes that only the type checkers keep from being changed.

Values that a host's code can share between tasks are `attrs.frozen`, so that a mistake in that code cannot change them
under another task. A value that stays inside the runtime, or is made for one reader, is a `value` instead: the type
checkers of this project see all code that holds it, and freezing it at run time would cost about a tenth of a turn.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    from attrs import define as value

__all__ = ["value"]
