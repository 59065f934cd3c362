"""The devices of a group, in their order, are all that it is known by."""

import pytest

from jax_passing.for_jax.groups import group

HOST_OF = {0: 0, 1: 0, 10: 1, 11: 1, 20: 2}


def test_a_group_knows_the_host_of_each_device():
    made = group(0, (11, 0, 1), HOST_OF)
    assert (made.hosts, made.host_set) == ((1, 0, 0), (0, 1))
    assert made.name == "3 devices, from device 11 on, of ranks 0, 1"
    assert group(0, (20,), HOST_OF).name == "1 device, from device 20 on, of rank 2"


def test_other_groups_have_other_ids():
    """Where the first device and a device's index are the same, too, which is all that MPI would tell."""
    told = [(0, (0, 10)), (0, (0, 10, 20)), (0, (0, 11)), (0, (10, 0)), (1, (0, 10))]
    ids = [group(number, devices, HOST_OF).id for number, devices in told]
    assert len(set(ids)) == len(ids)
    assert all(0 <= each < 1 << 63 for each in ids)
    assert ids == [group(number, list(devices), dict(reversed(HOST_OF.items()))).id for number, devices in told]


def test_a_device_that_jax_does_not_have_is_refused():
    with pytest.raises(ValueError, match="no devices 7"):
        group(0, (0, 7), HOST_OF)
