"""Schedules, against theory: their bubbles, and how many activations they keep."""

import itertools

import pytest

from jax_passing.errors import UsageError
from jax_passing.pipelining.schedule import Durations, Kind, Schedule, Task
from jax_passing.pipelining.schedules import gpipe, interleaved, one_f_one_b, zb_h1

SIZES = [(1, 1), (1, 5), (2, 1), (2, 2), (3, 8), (4, 2), (4, 4), (4, 5), (5, 16), (8, 3), (8, 8), (8, 17)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_the_bubble_without_splits(make, devices, microbatches):
    schedule = make(devices, microbatches)
    schedule.check()
    assert schedule.bubble() == pytest.approx((devices - 1) / microbatches)


def stash_depths(schedule):
    """Returns for each device the most forward passes whose backward passes are still to come."""
    depths = []
    for tasks in schedule.tasks:
        steps = [(task.kind is Kind.FORWARD) - (task.kind in (Kind.BACKWARD, Kind.WEIGHTS)) for task in tasks]
        depths.append(max(itertools.accumulate(steps)))
    return depths


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_the_activations_that_a_device_keeps(devices, microbatches):
    assert stash_depths(gpipe(devices, microbatches)) == [microbatches] * devices
    least = [min(microbatches, devices - device) for device in range(devices)]
    assert stash_depths(one_f_one_b(devices, microbatches)) == least
    assert max(stash_depths(zb_h1(devices, microbatches))) == max(least)


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_the_bubble_of_zero_bubble(devices, microbatches):
    schedule = zb_h1(devices, microbatches)
    schedule.check()
    if microbatches >= devices:
        assert schedule.bubble() == pytest.approx((devices - 1) / (3 * microbatches))
    else:  # too few microbatches to fill a wait with the weights of others
        assert schedule.bubble() < one_f_one_b(devices, microbatches).bubble() or devices == 1


@pytest.mark.parametrize(("devices", "groups", "stages_per_device"), [(1, 3, 2), (2, 2, 3), (4, 2, 2), (5, 3, 4)])
def test_the_bubble_of_interleaving(devices, groups, stages_per_device):
    microbatches = devices * groups
    schedule = interleaved(devices, microbatches, stages_per_device)
    schedule.check()
    assert schedule.stages == devices * stages_per_device
    assert [schedule.device_of[stage] for stage in range(schedule.stages)] == [*range(devices)] * stages_per_device
    assert schedule.bubble() == pytest.approx((devices - 1) / (stages_per_device * microbatches))
    with pytest.raises(UsageError, match=f"multiple of {devices + 1}"):
        interleaved(devices + 1, devices * (devices + 1) + 1, stages_per_device)


def test_a_slow_stage_makes_all_others_wait():
    schedule = one_f_one_b(2, 4)
    spans = schedule.timeline([Durations(1, 1, 1), Durations(2, 2, 2)])
    assert spans[1][-1].end_s == 1 + 4 * 6
    assert spans[0][-1].end_s == 1 + 4 * 6 + 2
    assert schedule.bubble([Durations(1, 1, 1), Durations(2, 2, 2)]) == pytest.approx(27 / 24 - 1)


F, B, I, W = (kind for kind in Kind)  # noqa: E741


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([[Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 1, 0)]], "0 whole backward passes"),
        ([[Task(F, 0, 0), Task(B, 0, 0), Task(F, 0, 0)], [Task(F, 1, 0), Task(B, 1, 0)]], "2 forward passes"),
        ([[Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 1, 0), Task(I, 1, 0)]], "1 first and 0 second parts"),
        ([[Task(B, 0, 0), Task(F, 0, 0)], [Task(F, 1, 0), Task(B, 1, 0)]], "stuck before B0.0"),
        ([[Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 1, 0), Task(W, 1, 0), Task(I, 1, 0)]], "stuck before B0.0, W1.0"),
        ([[Task(F, 0, 0), Task(B, 1, 0)], [Task(F, 1, 0), Task(B, 0, 0)]], "exactly one device"),
        ([[Task(F, 0, 0), Task(B, 0, 0), Task(F, 0, 7)], [Task(F, 1, 0), Task(B, 1, 0)]], "that don't exist: F0.7"),
    ],
)
def test_tables_that_are_no_schedule(tasks, message):
    with pytest.raises(UsageError, match=message):
        Schedule("mine", 2, 1, tuple(map(tuple, tasks))).check()


def test_a_schedule_is_printed_with_its_waits():
    assert str(zb_h1(2, 2)).splitlines() == [
        "zb-h1: 2 stages, 2 microbatches, bubble 0.167",
        "  device 0: F0.0 F0.1      I0.0 W0.0 I0.1 W0.1",
        "  device 1:      F1.0 I1.0 F1.1 I1.1 W1.0 W1.1",
    ]


def test_a_schedule_is_drawn():
    (axes,) = one_f_one_b(3, 4).plot().axes
    assert len(axes.patches) == 3 * 4 * 2
