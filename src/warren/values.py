"""Values that stay inside the runtime: classes of attrs that the type checkers keep from being changed.

What a host can get hold of is frozen at run time, too (`attrs.frozen`): there a mistake of somebody else's code would
change what other tasks hold. Where all who touch a value are checked by this project's type checkers, and where it is
made for its readers alone, that costs more than it is worth: setting the fields of what one turn makes would be a tenth
of its time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    from attrs import define as value

__all__ = ["value"]
