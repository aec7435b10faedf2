"""The page waits for nothing without an end and words."""

import re

import pytest
from playwright.sync_api import expect

from tests.transport.console.stage import Gateway, Watched, show

PAST_THE_LIMIT = 11_000
SLOW_FRAMES = """
const soon = setTimeout;
requestAnimationFrame = (draw) => soon(() => draw(performance.now()), 1000);
setTimeout = (call, wait, ...rest) => soon(call, wait <= 100 ? 1000 : wait, ...rest);
"""
"""A browser with so much to do that a second passes between two of its frames."""


@pytest.mark.time_limit(60)
def test_a_gateway_that_takes_the_connection_and_never_answers(served: Gateway, watched: Watched) -> None:
    """The page says so and tries again; as soon as the gateway answers it is connected."""
    page, taken = watched.page, list[str]()
    page.clock.install()
    page.route_web_socket(re.compile("/ws$"), lambda socket: taken.append(socket.url))
    page.goto(served.url)
    expect(page.get_by_test_id("status")).to_have_text("Connected")
    for _ in range(2):
        page.clock.fast_forward(PAST_THE_LIMIT)
        expect(page.get_by_text("The gateway does not answer. It is tried again.")).to_be_visible()
    assert len(taken) > 1
    page.unroute_all()
    page.route_web_socket(re.compile("/ws$"), lambda socket: socket.connect_to_server())
    page.clock.fast_forward(PAST_THE_LIMIT)
    page.clock.fast_forward(PAST_THE_LIMIT)
    expect(page.get_by_test_id("count")).to_be_visible()


@pytest.mark.time_limit(60)
def test_a_token_that_ends_before_the_first_answer(served: Gateway, watched: Watched) -> None:
    """The page asks for another one: the lost greeting does not make it look connected."""
    page = watched.page
    page.route_web_socket(re.compile("/ws$"), lambda socket: socket.on_message(lambda _: socket.close(code=4401)))
    page.goto(served.url)
    expect(page.get_by_text("This token has expired or was revoked.")).to_be_visible()
    expect(page.get_by_test_id("status")).to_have_text("Not signed in")


@pytest.mark.time_limit(60)
def test_a_screen_whose_files_do_not_come(served: Gateway, watched: Watched) -> None:
    """The page says so instead of waiting, and shows the screen if it is tried again when the gateway is back."""
    page = watched.page
    watched.allowed += ["Failed to load resource"]
    show(page, served)
    page.route("**/memory.js", lambda route: route.abort())
    page.goto(f"{served.url}#/memory")
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Memory")).to_be_visible()


def test_a_gateway_that_answers_before_the_next_frame(served: Gateway, watched: Watched) -> None:
    """A page that is still drawing its first words shows the connection all the same."""
    watched.page.add_init_script(SLOW_FRAMES)
    show(watched.page, served)
    expect(watched.page.get_by_test_id("count")).to_be_visible()
