"""The layers of the library, as the tests of its layout know them."""

from typing import Final

LAYERS: Final = ("domain", "mailbox", "storage", "actors", "transport")
"""From the inside outwards: a layer imports itself and those before it."""
FOLDERS: Final = LAYERS[1:]
"""The layers that have a folder at the root of the repository."""
