"""Flight records of all hosts become one time line, whatever their clocks say."""

import pytest

from jax_passing.records.diagnosis import diagnose
from jax_passing.records.files import OURS
from jax_passing.records.trace_events import trace_events
from support.records.made import NOW, A, B, host, sum_of, switch


def done(execution, ago_s, took_s=0.5):
    return sum_of(A, execution, "completed", ago_s, ended_ago_s=ago_s - took_s)


def spans(document, rank, name=None):
    found = [one for one in document["traceEvents"] if one["pid"] == rank and one["ph"] == "X"]
    return [one for one in found if name is None or one["name"].startswith(name)]


def test_clocks_are_aligned_by_the_results():
    executions = [done(number, 10.0 - number) for number in range(5)]
    late = [*executions[:4], done(4, 6.0, took_s=3.0)]  # with one result
    document = trace_events(diagnose([host(0, executions, world_size=2), host(1, late, world_size=2, ahead_s=100.0)]))
    assert document["otherData"]["clocks_ahead_us"] == {"0": 0.0, "1": pytest.approx(100e6)}
    for first, second in zip(spans(document, 0)[:4], spans(document, 1)[:4], strict=True):
        assert second["ts"] == pytest.approx(first["ts"], abs=1)
        assert second["dur"] == pytest.approx(0.5e6, abs=1)
    assert spans(document, 0)[0]["ts"] == pytest.approx((NOW - 10.0) * 1e6, abs=1)


@pytest.mark.parametrize(("epoch", "aligned"), [(5, True), (4, False)])
def test_clocks_of_switches_are_aligned_by_the_messages_of_joining(epoch, aligned):
    """The second host hears a second late that they begin, by a clock that is ahead itself."""
    executions = [done(number, 10.0 - number) for number in range(5)]
    second = host(1, executions, world_size=2, ahead_s=50.0)
    next(event for event in second[OURS]["events"] if event["kind"] == "joined")["at"] += 1.0
    at_switch = switch([(0, 1.0), (1, 1.0)], epoch=epoch, ahead_s=-30.0)
    document = trace_events(diagnose([host(0, executions, world_size=2), second, at_switch]))
    assert document["otherData"]["clocks_ahead_us"]["s:1"] == (pytest.approx(-30e6) if aligned else 0.0)
    at = {one["name"]: one["ts"] for one in reversed(document["traceEvents"]) if one["ph"] == "i"}
    after_us = -0.1e6 if aligned else -30.1e6
    assert at["started: ranks 0, 1"] == pytest.approx(at["joined: joined"] + after_us, abs=1)


def test_sums_that_overlap_have_rows_of_their_own():
    several = [
        done(0, 9.0),
        sum_of(B, 0, "completed", 8.8, ended_ago_s=8.0),
        done(1, 8.4),
        sum_of(A, 2, "started", 2.0),
    ]
    document = trace_events(diagnose([host(0, several, world_size=1)]))
    assert [(one["tid"], one["args"]["execution"]) for one in spans(document, 0)] == [(1, 0), (2, 0), (1, 1), (1, 2)]
    last = spans(document, 0)[-1]
    assert last["dur"] == pytest.approx(2e6, abs=1)
    assert last["args"]["state"] == "started"
    ends = {}
    for one in spans(document, 0):
        assert one["ts"] >= ends.get(one["tid"], 0.0)
        ends[one["tid"]] = one["ts"] + one["dur"]


def test_the_wait_for_devices_and_events_are_shown():
    gathered = done(0, 5.0)
    gathered.scheduled_us -= 2_000_000
    document = trace_events(diagnose([host(0, [gathered], world_size=1), switch([(0, 1.0)])]))
    whole, devices = spans(document, 0)
    assert (devices["name"], devices["ts"]) == ("devices come", whole["ts"])
    assert devices["dur"] == pytest.approx(2e6, abs=1)
    assert whole["dur"] == pytest.approx(2.5e6, abs=1)
    instants = [one for one in document["traceEvents"] if one["ph"] == "i"]
    names = ["asks: asks to join", "joined: joined", "started: ranks 0, 1", "joined: rank 0"]
    assert [one["name"] for one in instants] == names
    assert instants[2]["ts"] == pytest.approx((NOW - 100.1) * 1e6, abs=1)
    names = [one["args"]["name"] for one in document["traceEvents"] if one["name"] == "process_name"]
    assert names == ["rank 0 (node0, 10.0.0.0)", "switch s:1"]
