"""An asynchronous standby of a server for tests, which can be cut off and take the server's place."""

from tests.support.postgres import Server, own
from tests.support.waiting import wait_until

STREAMS = ("-c", "wal_level=replica", "-c", "max_wal_senders=4", "-c", "hot_standby=on", "-c", "wal_keep_size=512MB")


def standby_of(primary: Server, name: str) -> Server:
    """Make a standby of a server, and return it when it has all that the server has."""
    folder = primary.folder.parent / f"{primary.folder.name.partition('.')[0]}.{name}"
    folder.mkdir()
    own(folder)
    data = str(folder / "data")
    primary.tool("pg_basebackup", "-D", data, "-c", "fast", "-X", "stream", "-d", primary.url("postgres"), "-R")
    standby = Server(folder, primary.flags, primary.programs)
    standby.start()
    wait_until(lambda: _behind(primary) == [(True,)], 60.0)
    return standby


def _behind(primary: Server) -> list[tuple[object, ...]]:
    return primary.run("postgres", "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication")


def cut_off(standby: Server) -> None:
    """Let a standby hear nothing more of its server."""
    standby.run("postgres", "ALTER SYSTEM SET primary_conninfo = ''")
    standby.run("postgres", "SELECT pg_reload_conf()")
    wait_until(lambda: not standby.run("postgres", "SELECT 1 FROM pg_stat_wal_receiver"), 60.0)


def promote(standby: Server) -> None:
    """Let a standby take connections that write."""
    standby.run("postgres", "SELECT pg_promote(true, 60)")
    wait_until(lambda: standby.run("postgres", "SELECT pg_is_in_recovery()") == [(False,)], 60.0)
