"""The version of a store in files: seen, made, brought up to date. A program that opens the store does the same."""

from contextlib import closing

from warren.base.errors import StoreError
from warren.conversation.memory import Progress
from warren.settings.config import StoreConfig
from warren.storage.maintenance.files import look_at
from warren.storage.maintenance.versions import StoreVersion
from warren.storage.sqlite.database import close_writer, version_of
from warren.storage.sqlite.file import FILE_NAME, SESSION_STORE, VERSION, open_writer


def look(config: StoreConfig) -> StoreVersion:
    """Return the version of a store, which is 0 if there is no file. Nothing is changed.

    Raises StoreError for another program's file, and if the file cannot be read.
    """
    path = config.path / FILE_NAME
    version = 0
    with SESSION_STORE.faults(path):
        if path.exists():
            with closing(look_at(path, config.busy_timeout)) as db:
                version = db.pragma("user_version")
                if version <= VERSION:
                    version_of(db, SESSION_STORE)
    return StoreVersion(path=str(path), version=version, needs=version, known=VERSION)


def migrate(config: StoreConfig, *, make: bool, progress: Progress | None = None) -> StoreVersion:
    """Bring a store up to this version, and return its version before; with `make` it may be missing.

    `progress` is called before and after each script. Raises StoreError with `cause` "missing", "newer_schema" and so
    on.
    """
    before = look(config)
    if not before.version and not make:
        raise StoreError(f"there is no store at {config.path}", cause="missing", retryable=False)
    with SESSION_STORE.faults(config.path / FILE_NAME):
        close_writer(open_writer(config, progress))
    return before
