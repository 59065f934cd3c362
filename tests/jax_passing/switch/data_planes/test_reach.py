"""The reach lets through whatever hosts can send, and no more than it takes."""

import pytest

from jax_passing.config import SHARDS_MAX
from jax_passing.switch.data_planes.reach import REACH_MAX, reach, reach_at_planes
from support.switch.control import scenario


@pytest.mark.parametrize(
    ("slots", "shards", "expected"),
    [(1, 1, 6), (256, 1, 1536), (256, 2, 2 * 256 * (3 * 32 + 2)), (1024, 16, 2 * 1024 * (17 * 8 + 2))],
)
def test_it_is_a_few_windows(slots, shards, expected):
    assert reach(slots, shards) == expected


@pytest.mark.parametrize("slots", [1, 4, 64, 65536])
def test_sequences_can_always_be_told_apart(slots):
    assert all(6 * slots <= reach(slots, shards) < REACH_MAX / 4 for shards in range(1, SHARDS_MAX + 1))


@pytest.mark.parametrize(
    ("switches", "planes", "threads", "most"), [(1, 1, 2, 1), (1, 4, 1, 4), (1, 4, 4, 1), (3, 4, 2, 6), (2, 2, 8, 1)]
)
def test_threads_have_their_part_of_all_planes(switches, planes, threads, most):
    assert reach_at_planes(256, switches, planes, threads) >= reach(256 * planes, most)
    assert reach_at_planes(256, switches, planes, threads) <= max(
        reach(256 * planes, shards) for shards in range(1, max(most, switches) + 1)
    )


@scenario()
async def test_a_job_is_told_by_its_slots(switch):
    await switch.job()
    assert switch.data_plane.running[1].reach == reach(256, 1)


@scenario()
async def test_and_by_its_shards(switch):
    await switch.join(0, 1, switches=("0123", "4567"))
    await switch.has(0)
    assert switch.data_plane.running[1].reach == reach(256, 2)


@scenario()
async def test_packets_may_turn_out_shorter_than_this_switch_takes(switch):
    switch.data_plane.lanes_per_chunk = 2232
    for rank in range(2):
        await switch.join(rank, 2, switches=("0123", "4567"), lanes=2232)
    await switch.has(0, 1)
    (job,) = switch.data_plane.running.values()
    assert job.lanes_per_chunk == 2232
    assert (job.slot_count, job.reach) == (32, 2 * 32 * (3 * 16 + 2))  # turns of as many short packets as fit
