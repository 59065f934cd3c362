"""It can be said what was counted in the last minute."""

from types import SimpleNamespace

import pytest

from jax_passing.switch.data_planes.job_counts import JobCounts, WorkerCounts
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch, Job
from jax_passing.switch.jobs.recent import SAMPLE_S, WINDOW_S, Recent


class Counting:
    """A data plane that counts ten chunks a second from time 1000 on, the last ones by worker 1 alone."""

    def __init__(self):
        self.now = 1000.0
        self.job = 7

    def counts(self, job):
        if job != self.job:
            return None
        chunks = round(10 * (self.now - 1000.0))
        workers = tuple(WorkerCounts(chunks, 0, last, 1000 * last, 5) for last in (0, chunks))
        return JobCounts(chunks, 360 * chunks, 3, None, workers)


def recent_of(plane):
    return Recent(plane, on_waiting=lambda epoch, chunk: None, on_counted=lambda epoch, counted, now: None)


@pytest.fixture
def epoch():
    return Epoch(Job("a", 7), 1, 2, since=1000.0, state=EpochState.RUNNING)


def look_until(recent, plane, epochs, until):
    while plane.now < until:
        plane.now = round(plane.now + 0.1, 1)
        recent.look(epochs, plane.now)


def test_before_there_is_a_sample_it_counts_from_the_beginning(epoch):
    plane = Counting()
    plane.now = 1002.0
    seconds, minute, total = recent_of(plane).counted(epoch, plane.now)
    assert seconds == minute == total
    assert (minute.seconds, minute.counts.chunks, minute.counts.workers[1].last) == (2.0, 20, 20)


def test_the_last_seconds_and_the_last_minute(epoch):
    plane = Counting()
    recent = recent_of(plane)
    look_until(recent, plane, [epoch], 1600.0)
    seconds, minute, total = recent.counted(epoch, plane.now)
    assert total.seconds == 600.0
    assert SAMPLE_S <= seconds.seconds <= 2 * SAMPLE_S
    assert WINDOW_S - 2 * SAMPLE_S <= minute.seconds <= WINDOW_S
    for counted in (seconds, minute, total):
        assert counted.counts.chunks == pytest.approx(10 * counted.seconds)
        assert counted.counts.workers[1].waited_us == pytest.approx(10_000 * counted.seconds)
        assert counted.counts.workers[0].last == 0
        assert (counted.counts.waiting, counted.counts.workers[0].silent_us) == (3, 5)


def test_another_epoch_counts_anew(epoch):
    plane = Counting()
    recent = recent_of(plane)
    look_until(recent, plane, [epoch], 1030.0)
    again = Epoch(epoch.job, 2, 2, since=1030.0, state=EpochState.RUNNING)
    plane.now = 1031.0
    assert recent.counted(again, plane.now)[1].seconds == 1.0


def test_nobody_keeps_an_epoch_that_is_over(epoch):
    plane = Counting()
    recent = recent_of(plane)
    look_until(recent, plane, [epoch], 1030.0)
    assert recent._samples
    look_until(recent, plane, [], 1040.0)
    assert not recent._samples


def test_what_nobody_can_tell_is_none(epoch, caplog):
    def raises(job):
        raise RuntimeError("the driver is gone")

    caplog.set_level("ERROR", logger="jax_passing.switch")
    plane = Counting()
    plane.job = 8
    assert recent_of(plane).counted(epoch, plane.now) is None
    recent = recent_of(SimpleNamespace(counts=raises))
    recent.look([epoch], plane.now)
    assert recent.counted(epoch, plane.now) is None
    assert "the driver is gone" in caplog.text
