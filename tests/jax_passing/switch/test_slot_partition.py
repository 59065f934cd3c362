"""Which slots belong to which job."""

from hypothesis import given
from hypothesis import strategies as st

from jax_passing.switch.slot_partition import SlotPartition


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
