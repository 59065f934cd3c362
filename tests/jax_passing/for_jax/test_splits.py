"""The calls of a split make the same groups on all hosts, or it is refused."""

import pytest

from jax_passing.for_jax import splits

CALLS = {0: [(0, 0), (4, 0)], 1: [(0, 2), (4, 1)], 2: [(0, 1), (7, 5)]}


def test_devices_with_one_color_are_a_group_in_the_order_of_their_keys():
    made = splits.groups(0, CALLS)
    assert {color: (group.keys, group.hosts, group.host_set) for color, group in made.items()} == {
        0: ((0, 1, 2), (0, 2, 1), (0, 1, 2)),
        4: ((0, 1), (0, 1), (0, 1)),
        7: ((5,), (2,), (2,)),
    }
    assert made[0].name == "3 devices, from device 0 on, of ranks 0, 1, 2"
    assert made[7].name == "1 device, from device 7 on, of rank 2"


def test_the_order_of_ranks_and_calls_changes_nothing():
    other_order = {rank: calls[::-1] for rank, calls in reversed(CALLS.items())}
    assert splits.groups(0, other_order) == splits.groups(0, CALLS)


def test_several_devices_of_a_host_name_it_once():
    group = splits.groups(0, {3: [(0, 1), (0, 0)], 1: [(0, 2)]})[0]
    assert (group.hosts, group.host_set) == ((3, 3, 1), (1, 3))


def test_groups_of_other_splits_or_other_devices_have_other_ids():
    said = [(0, CALLS), (1, CALLS), (0, {0: [(0, 0), (4, 1)], 1: [(0, 1), (4, 0)]})]
    ids = [group.id for number, calls in said for group in splits.groups(number, calls).values()]
    assert len(set(ids)) == len(ids) == 8
    assert all(0 <= each < 1 << 63 for each in ids)


@pytest.mark.parametrize("said", [{0: [(4, 1)], 1: [(4, 1)]}, {0: [(4, 1), (4, 1)]}], ids=["two hosts", "one host"])
def test_two_devices_with_one_index_are_refused(said):
    with pytest.raises(ValueError, match="the same index in the group that begins with device 4"):
        splits.groups(0, said)
