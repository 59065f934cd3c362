"""A switch remembers which failures jobs have recovered from, who caused them, and for how long jobs stood."""

import dataclasses
from types import SimpleNamespace

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts
from jax_passing.switch.jobs.recoveries import JOBS_MAX, KEPT_S, REMEMBERED, STOOD_S, Recoveries
from jax_passing.switch.status import families as told
from support.switch.control import scenario

LOST = messages.Failed("HostLostError", "Rank 1 closed its connection", (1,))
WAITS = WaitingChunk(slot=3, version=0, sequence=99, bitmap=0b01, waited_us=4_000_000)


class Clock:
    def __init__(self):
        self.time = 1000.0

    def now(self):
        return self.time


class Plane:
    oldest = None

    def counts(self, job):
        return JobCounts(1, 1, 1, self.oldest, (WorkerCounts(),))


def epoch(job, number, since=1000.0):
    about = {"number": number, "since": since, "where": lambda ranks: "rank 1 (node)"}
    return SimpleNamespace(job=SimpleNamespace(name=job, number=1), **about)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plane():
    return Plane()


@pytest.fixture
def noted(plane, clock):
    return Recoveries(plane, clock)


def recover(noted, clock, job="a", number=1, seconds=0.5, failed=LOST):
    noted.failed(epoch(job, number, 1000.0 if job in ("a", "runs") else clock.time - 1.0), failed)
    clock.time += seconds
    return noted.started(epoch(job, number + 1))


def test_a_job_runs_again(noted, clock):
    recovery = recover(noted, clock)
    assert (recovery.job, recovery.epoch, recovery.stood_s) == ("a", 2, 0.5)
    interruption = recovery.interruption
    assert (interruption.epoch, interruption.kind, interruption.culprit, interruption.ranks) == (
        1,
        "HostLostError",
        "rank 1 (node)",
        (1,),
    )
    clock.time += 10
    assert noted.last(9) == [recovery]
    assert noted.started(epoch("a", 3)) is None  # nothing has failed since
    assert noted.counted == {"HostLostError": 1}


def test_a_standstill_begins_before_the_failure_is_noticed(noted, clock, plane):
    plane.oldest = WAITS
    assert recover(noted, clock).stood_s == 4.5


def test_a_data_plane_that_cant_tell(noted, clock, plane, caplog):
    plane.counts = lambda job: None
    assert recover(noted, clock).stood_s == 0.5

    def fails(job):
        raise OSError("the device is gone")

    plane.counts = fails
    caplog.set_level("ERROR", "jax_passing.switch")
    assert recover(noted, clock).stood_s == 0.5
    assert "the device is gone" in caplog.text


def test_a_job_that_hasnt_run_again_is_told_of(noted, clock):
    noted.failed(epoch("a", 7), LOST)
    clock.time += 30
    (waiting,) = noted.last(9)
    assert (waiting.epoch, waiting.stood_s, waiting.interruption.epoch) == (None, 30.0, 7)
    assert noted.counted == {}


def test_an_hour_later_it_is_forgotten(noted, clock):
    recover(noted, clock)
    noted.failed(epoch("b", 1), LOST)
    clock.time += KEPT_S + 1
    assert noted.last(9) == []
    assert noted.started(epoch("b", 2)) is None
    assert noted.counted == {"HostLostError": 1}


def test_memory_is_bounded_and_a_job_takes_nothing_of_others(noted, clock):
    recover(noted, clock, "quiet")
    for number in range(REMEMBERED + 5):
        recover(noted, clock, "noisy", number)
    last = noted.last(1000)
    assert [one.job for one in last] == ["noisy"] * REMEMBERED + ["quiet"]
    assert last[0].interruption.epoch == REMEMBERED + 4
    for number in range(JOBS_MAX):
        recover(noted, clock, f"job {number}")
        noted.failed(epoch(f"failed {number}", 1), LOST)
    assert len(noted.last(10_000)) == 2 * JOBS_MAX + REMEMBERED - 1  # which the noisy one keeps: it ran long
    assert len(noted.last(5)) == 5


def test_jobs_of_strangers_displace_none_that_ran_longer(noted, clock):
    clock.time += 60.0
    noted.failed(epoch("waits", 1), LOST)
    recover(noted, clock, "runs")
    for number in range(3 * JOBS_MAX):
        for _ in range(2):
            recover(noted, clock, f"stranger {number}", seconds=0.01)
        noted.failed(epoch(f"stranger {number}", 3, clock.time - 1.0), LOST)
    assert noted.forgotten == 2 * (2 * JOBS_MAX + 1)
    shown = noted.last(2 * JOBS_MAX)
    assert len(shown) == 2 * JOBS_MAX
    assert {"waits", "runs"} < {one.job for one in shown}
    assert {one.job for one in noted.last(2)} == {"waits", "runs"}
    assert noted.started(epoch("waits", 2)).interruption.epoch == 1
    clock.time += KEPT_S + 1  # what is too old displaces nobody
    recover(noted, clock, "late", failed=LOST)
    assert [one.job for one in noted.last(9)] == ["late"]
    assert len(noted._ran_s) == 1


def test_hosts_that_ran_elsewhere_since_know_better(noted, clock):
    noted.failed(epoch("a", 1), LOST)
    heard = noted.last(1)[0].interruption
    noted.heard("a", dataclasses.replace(heard, at=heard.at + 0.5, kind="SwitchLostError"))
    assert noted.last(1)[0].interruption == heard
    later = dataclasses.replace(heard, at=heard.at + 60.0, kind="SwitchLostError")
    noted.heard("a", later)
    assert [one.interruption for one in noted.last(9)] == [later]


def test_what_hosts_say_is_told_and_not_counted(noted, clock):
    noted.failed(epoch("a", 1), LOST)
    said = dataclasses.replace(noted.last(1)[0].interruption, epoch=None)
    noted.heard("b", said)
    assert noted.started(epoch("b", 1)) in noted.last(9)
    assert (noted.counted, noted.classes, noted.stood_s) == ({}, {}, {})


def test_kinds_of_errors_arent_made_up(noted, clock):
    noted.failed(epoch("a", 1), LOST)
    (known,) = noted.last(1)
    noted.heard("b", dataclasses.replace(known.interruption, kind="MadeUp"))
    assert noted.last(9) == [known]


def test_standstills_are_counted_by_classes(noted, clock):
    for seconds in (0.1, STOOD_S[0], 0.3, STOOD_S[-1] + 1):
        recover(noted, clock, seconds=seconds)
    classes = [noted.classes["HostLostError", each] for each in range(len(STOOD_S) + 1)]
    assert classes == [2, 1, *[0] * (len(STOOD_S) - 2), 1]
    assert noted.stood_s["HostLostError"] == pytest.approx(0.1 + STOOD_S[0] + 0.3 + STOOD_S[-1] + 1)
    assert noted.counted == {"HostLostError": 4}


@scenario()
async def test_the_status_has_the_culprit_by_name(switch):
    hosts, _ = await switch.job(host_name="node7")
    switch.data_plane.counted[1] = JobCounts(9, 9, 1, WAITS, (WorkerCounts(), WorkerCounts()))
    hosts[1].writer.close()
    await hosts[0].receive()
    (waits,) = switch.plane.report.document()["recoveries"]
    assert (waits["epoch_before"], waits["epoch"]) == (1, None)
    await switch.job(host_name="node8")
    switch.plane.report._made_at = float("-inf")
    document = switch.plane.report.document()
    (told_of,) = document["recoveries"]
    assert (told_of["job"], told_of["epoch_before"], told_of["epoch"], told_of["kind"]) == ("a", 1, 2, "HostLostError")
    assert (told_of["ranks"], told_of["culprit"]) == ((1,), "rank 1 (node7, 127.0.0.1)")
    assert "Rank 1 closed its connection" in told_of["why"]
    assert 4.0 < told_of["stood_s"] < 30.0
    events = {event.kind: event for event in switch.plane.jobs.chronicle.journal.events}
    assert events["failed"].facts["culprit"] == "rank 1 (node7, 127.0.0.1)"
    assert events["recovered"].facts["stood_s"] == told_of["stood_s"]
    samples = {
        (sample.name.removeprefix("jax_passing_switch_"), *sample.labels.values()): sample.value
        for family in told.families(document)
        for sample in family.samples
    }
    assert samples["job_stood_seconds", "a", "HostLostError"] == told_of["stood_s"]
    assert samples["recovery_seconds_count", "HostLostError"] == 1
    assert samples["recovery_seconds_sum", "HostLostError"] == told_of["stood_s"]
    assert samples["recovery_seconds_bucket", "HostLostError", "2.5"] == 0
    assert samples["recovery_seconds_bucket", "HostLostError", "30"] == 1


@scenario()
async def test_a_job_that_never_began_hasnt_failed(switch):
    host = await switch.join(0)
    await switch.has(0)
    host.writer.close()
    await switch.has()
    assert switch.plane.report.document()["recoveries"] == []


def test_reasons_are_bounded(noted, clock):
    recover(noted, clock, failed=messages.Failed("HostLostError", "x" * 5000, (1,)))
    assert len(noted.last(1)[0].interruption.why) == messages.REASON_MAX
