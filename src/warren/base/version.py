"""The version of Warren. The build reads it from here, so that a program need not search for the installed package."""

from typing import Final

VERSION: Final = "0.1.0"
