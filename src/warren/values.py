"""Values that the type checkers alone keep from being changed.

What a host shares with other tasks is frozen at run time, too (`attrs.frozen`): there a mistake of somebody else's code
would change what they hold. Where a value stays among code that this project's type checkers see, and where it is made
for one reader, that costs more than it is worth: a tenth of a turn's time would go into setting the fields of what it
makes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    from attrs import define as value

__all__ = ["value"]
