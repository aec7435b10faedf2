"""Pykka: an actor on a thread of its own, asked by callers on threads."""

import time
from concurrent.futures import ThreadPoolExecutor

import pykka

PACKAGES = ("pykka",)


class Echo(pykka.ThreadingActor):
    """Answers with what it was asked."""

    def on_receive(self, message):
        """Return the message."""
        return message


def asks(callers, count):
    """Return asks per second of so many callers at once."""
    actor = Echo.start()

    def caller(_):
        for number in range(count // callers):
            assert actor.ask(number) == number

    try:
        with ThreadPoolExecutor(callers) as threads:
            begun = time.perf_counter()
            list(threads.map(caller, range(callers)))
            return {"rate": count / (time.perf_counter() - begun)}
    finally:
        actor.stop()
