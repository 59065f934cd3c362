"""Slots are given to jobs, and come back."""

from hypothesis import given
from hypothesis import strategies as st

from jax_passing.switch.jobs.slot_partition import SlotPartition


def test_a_range_counts_for_each_of_its_owners():
    partition = SlotPartition(64, per_owner=32)
    first = partition.allocate(16, ["a", "b"])
    partition.allocate(16, ["b", "c"])
    assert partition.who_has_enough(16, ["a", "c"]) is None
    assert partition.who_has_enough(16, ["a", "b"]) == "b"
    assert partition.who_has_enough(32, ["a", "d"]) == "a"
    partition.free(first)
    assert partition.who_has_enough(32, ["a", "d"]) is None


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=30), st.randoms(use_true_random=False))
def test_the_partition_never_overlaps(counts, random):
    partition, held = SlotPartition(32), {}
    for count in counts:
        first = partition.allocate(count)
        if first is None:
            assert held
            freed = random.choice(list(held))
            partition.free(freed)
            del held[freed]
            continue
        assert first % count == 0
        assert first + count <= 32
        assert all(first + count <= other or other + size <= first for other, size in held.items())
        held[first] = count
