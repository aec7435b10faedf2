"""Addresses of databases: passwords in them are never shown."""

import pytest

from warren.base.database_url import without_password
from warren.base.fields import FieldValueError
from warren.settings.config import Config, PostgresConfig


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://app@host:5433/db?sslmode=require", "postgresql://app@host:5433/db?sslmode=require"),
        ("postgresql://app:secret@a:1,b:2/db", "postgresql://app:***@a:1,b:2/db"),
        ("postgres://app:se%2Fcret@[::1]/db", "postgres://app:***@[::1]/db"),
        ("postgresql://app@/db?host=/run/x&password=secret", "postgresql://app@/db?host=/run/x&password=***"),
        ("postgresql:///db?sslpassword=secret", "postgresql:///db?sslpassword=***"),
        ("postgresql://app:sec/ret@host/db", "postgresql://***"),
        ("postgresql://app:sec?ret@host/db", "postgresql://***"),
        ("postgresql://app:sec#ret@host/db", "postgresql://***"),
        ("postgresql://app:secret@[::1/db", "postgresql://***"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    """Also one that is malformed."""
    assert without_password(url) == shown
    assert shown in repr(Config(store=PostgresConfig(url)))
    assert PostgresConfig(url).shown == shown
    assert PostgresConfig(url).url == url


@pytest.mark.parametrize("url", ["", "host/db", "sqlite:secret", "mysql://app:secret@host/db", "postgresql://a\0b/db"])
def test_another_address_is_refused(url: str) -> None:
    """The error does not repeat the address."""
    with pytest.raises(FieldValueError, match="url") as refused:
        PostgresConfig(url)
    assert "secret" not in str(refused.value)
