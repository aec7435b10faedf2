"""Replies that the clients of a process have not read."""

from functools import partial

from warren.transport.rpc.unread import UnreadReplies


def test_the_greediest_client_is_let_go() -> None:
    """It is the one with most bytes, whoever has added the last ones; its bytes count no more, and it goes once."""
    gone = list[str]()
    unread = UnreadReplies(100)
    one, two, three = (unread.share(partial(gone.append, name)) for name in ("one", "two", "three"))
    one.hold(60)
    two.hold(40)
    assert gone == []
    three.hold(1)
    assert (gone, unread.size, one.ended) == (["one"], 41, True)
    one.hold(1_000)
    two.hold(99)
    assert (gone, unread.size) == (["one"], 100)
    two.hold(0)
    three.hold(101)
    assert (gone, unread.size) == (["one", "three"], 0)
