"""The figures: percentiles, no coordinated omission, the series, and a tester that says that it was late."""

import pytest
import trio

from warren.transport.load.recorder import Histogram, Recorder


def test_percentiles_are_right_to_three_digits() -> None:
    """Of durations from a millisecond to ten seconds."""
    histogram = Histogram()
    for milliseconds in range(1, 10_001):
        histogram.add(milliseconds / 1e3)
    found = histogram.at(50.0, 99.0, 100.0)
    assert found == pytest.approx({50.0: 5_000, 99.0: 9_900, 100.0: 10_000}, rel=0.002)
    assert histogram.mean == pytest.approx(5_000.5)
    curve = histogram.curve()
    assert curve == sorted(curve)
    assert curve[-1][0] == 100


def test_without_durations_there_is_nothing() -> None:
    """And no error."""
    assert (Histogram().at(99.0), Histogram().mean, Histogram().curve()) == ({99.0: 0.0}, 0.0, [])


def test_what_is_out_of_range_counts_at_the_edge() -> None:
    """A duration of nothing, and one of days."""
    histogram = Histogram()
    histogram.add(0)
    histogram.add(1e6)
    assert len(histogram) == 2
    assert histogram.at(100.0)[100.0] == pytest.approx(3_600_000, rel=0.001)


@pytest.mark.virtual_time
async def test_latency_counts_from_when_a_turn_was_meant_to_start() -> None:
    """The wait of a user before the turn could begin is part of it; the service time is without."""
    recorder = Recorder()
    meant = trio.current_time()
    await trio.sleep(4)
    began = trio.current_time()
    await trio.sleep(1)
    recorder.answered(meant, began)
    assert recorder.latency.at(50.0)[50.0] == pytest.approx(5_000, rel=0.002)
    assert recorder.service.at(50.0)[50.0] == pytest.approx(1_000, rel=0.002)


@pytest.mark.virtual_time
async def test_every_second_has_a_line() -> None:
    """With what happened in it alone."""
    recorder = Recorder()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.tick)
        for number in range(3):
            await trio.sleep(0.5)
            recorder.events += 10 * (number + 1)
            recorder.answered(trio.current_time(), trio.current_time())
            await trio.sleep(0.5)
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert [(second.turns, second.events) for second in recorder.series] == [(1, 10), (1, 20), (1, 30)]
    assert not recorder.late


@pytest.mark.virtual_time
async def test_a_slow_second_shows() -> None:
    """The latencies of a second are those of its turns alone."""
    recorder = Recorder()
    for latencies in ((0.1,) * 9 + (0.9,), (0.2,), ()):
        for latency in latencies:
            recorder.answered(trio.current_time() - latency, trio.current_time())
        recorder.close_second()
    shown = [(second.p50, second.p99) for second in recorder.series]
    assert shown == [pytest.approx(each) for each in ((100, 900), (200, 200), (0, 0))]


@pytest.mark.virtual_time
async def test_a_late_tester_says_so() -> None:
    """If its own loop was held up, the figures are in doubt."""
    recorder = Recorder()
    for _ in range(10):
        recorder.lag.add(0.2)
    assert recorder.late
