"""Refusals of the gateway in the console: the page says so, and keeps the words that were written."""

import re

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.transport.console.stage import Gateway, Watched, say, show, turns

LONG = "z" * 1_500_000


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (True, "bytes as a message, and the gateway takes at most 1,048,576"),
        (False, "the message has more than 1048576 bytes"),
    ],
    ids=["refused by the page", "refused by the gateway"],
)
def test_words_above_the_bound_of_a_message(served: Gateway, watched: Watched, *, known: bool, why: str) -> None:
    """They stay in the box with the reason, also that of a gateway, which does not know whose call it was."""
    page, sent = watched.page, list[int]()

    def forgetful(client: WebSocketRoute) -> None:
        """Pass all on, but not what the gateway says of its bound."""
        gateway = client.connect_to_server()

        def there(message: str | bytes) -> None:
            sent.append(len(message))
            gateway.send(message)

        client.on_message(there)
        gateway.on_message(lambda message: client.send(str(message).replace('"max_message_bytes"', '"forgotten"')))

    if not known:
        page.route_web_socket(re.compile("/ws$"), forgetful)
    show(page, served, "session", served.create(None))
    say(page, LONG)
    expect(page.get_by_role("alert").filter(has_text=re.compile(why, re.IGNORECASE))).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_value(LONG)
    assert known or max(sent) > len(LONG)
    say(page, "in short")
    expect(turns(page)).to_contain_text("in short")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_first_prompt_that_is_refused(served: Gateway, watched: Watched) -> None:
    """The session is there, with the prompt in its box and the reason above it."""
    page = watched.page
    show(page, served)
    page.get_by_role("button", name="New session").first.click()
    page.get_by_label("First prompt").fill(LONG)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("too long")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_have_value(LONG)
    say(page, "in short")
    expect(turns(page)).to_contain_text("in short")


def test_a_session_that_is_not_there(served: Gateway, watched: Watched) -> None:
    """There are words and the way back alone: for an unknown one, and for one that another client deletes meanwhile."""
    page = watched.page
    show(page, served, "session", "doesnotexist")
    gone, main = page.get_by_role("heading", name="This session is not there"), page.get_by_role("main")
    expect(gone).to_be_visible()
    expect(main).to_contain_text("No session has the id doesnotexist")
    session_id = served.create("one")
    show(page, served, "session", session_id)
    expect(turns(page)).to_have_count(1)
    served.ask(lambda service: service.delete(session_id))
    expect(gone).to_be_visible()
    expect(main.get_by_role("log")).to_have_count(0)
    expect(main.get_by_role("button")).to_have_count(0)
    expect(main.get_by_role("textbox")).to_have_count(0)
    main.get_by_role("link", name="All sessions").click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
