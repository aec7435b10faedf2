"""Columns of SQLite: as the checks of `warren.storage.rows` read them, and the numbers of changes."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import Final

from warren.storage.rows import MAX_NUMBER

# A damaged number at the end of the range is left out: nothing could be numbered above it.
NEXT_CHANGE: Final = f"(SELECT coalesce(max(change), 0) + 1 FROM sessions WHERE change < {MAX_NUMBER})"

# A message is the prompt with which a turn has begun: `warren.conversation.messages.begins_turn` in SQL.
BEGINS_TURN: Final = "(json_valid(body) AND body ->> '$.role' = 'user' AND body ->> '$.steered' IS NULL)"


def raw(columns: str) -> str:
    """Return SQL that reads columns for `text_in`, `number_in` and `time_in`: text comes as bytes, UTF-8 or not.

    A blob, which no table of a store holds, comes as a float, which they refuse.
    """
    as_read = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) WHEN 'blob' THEN 0.5 ELSE {0} END"
    return ", ".join(as_read.format(name.strip()) for name in columns.split(","))
