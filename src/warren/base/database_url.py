"""The address of a PostgreSQL database, which may hold a password: it is checked and shown without it."""

import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import attrs

from warren.base.fields import FieldValueError, no_url
from warren.base.values import frozen

SCHEMES: Final = ("postgresql", "postgres")
HIDDEN: Final = "***"
_URL: Final = re.compile(rf"({'|'.join(SCHEMES)})://", re.IGNORECASE)


@frozen
class DatabaseUrl:
    """An address that a user named as the place of a store; as a text it has no password.

    Attributes:
        url: the address as it was given.
    """

    url: str

    def __str__(self) -> str:
        return without_password(self.url)

    def __repr__(self) -> str:
        return f"DatabaseUrl({str(self)!r})"


def is_url_of_database(text: str) -> bool:
    """Tell whether a text is meant as the address of a PostgreSQL database."""
    return _URL.match(text) is not None


def is_database_url(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse a value that is no address of a PostgreSQL database. Raises FieldValueError, which does not repeat it."""
    if not isinstance(value, str) or not is_url_of_database(value):
        raise FieldValueError(attribute.name, "must be an address such as postgresql://USER@HOST/DATABASE")
    if "\0" in value:
        raise FieldValueError(attribute.name, "must not have a NUL")


def is_place(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse a value that is neither a folder nor the address of a PostgreSQL database; None passes."""
    if value is not None and not is_url_of_database(value):
        no_url(instance, attribute, value)


def without_password(url: str) -> str:
    """Return an address for people: passwords are replaced, those among its options too."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return f"postgresql://{HIDDEN}"
    if "@" in parts.path + parts.query + parts.fragment:  # of a password with a character that should be escaped
        return f"postgresql://{HIDDEN}"
    kept = [(name, HIDDEN if "password" in name.lower() else value) for name, value in options]
    query = urlencode(kept, safe="*/:,", quote_via=quote)
    return f"{parts.scheme}://{_hosts(parts.netloc)}{parts.path}{query and '?' + query}"


def _hosts(netloc: str) -> str:
    user, at, hosts = netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return f"{name}{colon and colon + HIDDEN}{at}{hosts}"
