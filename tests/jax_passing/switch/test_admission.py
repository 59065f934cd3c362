"""What a switch checks before it admits a rank: the rules that need no connection."""

import itertools
from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.admission import Abilities, RefusalError, common_lanes, least, rank_of_host, rank_of_rack

RACK = Abilities("rack", 1024, 360, False, None)
SPINE = Abilities("spine", 256, 64, True, 100.0)
FACTS = {"strategy": "flat", "jaxlib": "0.10.0"}
JOIN = messages.Join(messages.PROTOCOL_VERSION, "a", 0, 2, ("x", "y"), 9, "process", 5.0, link_gbit=25.0, alike=FACTS)


def test_a_rank_takes_along_what_its_host_said_and_what_switches_can_do():
    at_rack = rank_of_host(JOIN, "10.0.0.1", RACK)
    assert (at_rack.rank, at_rack.world_size, at_rack.host, at_rack.shards) == (0, 2, "10.0.0.1", 2)
    assert (at_rack.alike, at_rack.link_gbit, at_rack.switch_link_gbit) == (FACTS, 25.0, None)
    at_spine = rank_of_rack(at_rack, SPINE)
    assert (at_spine.slot_count, at_spine.lanes_per_chunk, at_spine.whole_chunks) == (256, 64, True)
    assert (at_spine.path, at_spine.link_gbit, at_spine.switch_link_gbit) == (("rack", "spine"), 25.0, 100.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 2}, "isn't below the world size"),
        ({"path": ("spine", "rack")}, "lead in a circle"),
        ({"path": tuple("abcdefgh")}, "at most 8 levels"),
        ({"slot_count": 48}, "power of two"),
        ({"lanes_per_chunk": 32}, "32 and 64, and one takes no fewer"),
    ],
)
def test_ranks_that_a_rack_may_not_bring(changes, message):
    join = msgspec.structs.replace(rank_of_host(JOIN, "h", RACK), **changes)
    with pytest.raises(RefusalError, match=message):
        rank_of_rack(join, SPINE)


@given(st.lists(st.tuples(st.sampled_from([32, 64, 128, 360]), st.booleans()), min_size=1, max_size=4))
def test_lanes_dont_depend_on_who_comes_first(switches):
    results = set()
    for order in itertools.permutations(switches):
        try:
            results.add(reduce(common_lanes, order))
        except RefusalError:
            results.add(None)
    assert len(results) == 1
    (result,) = results
    fixed = {lanes for lanes, whole in switches if whole}
    lowest = min(lanes for lanes, _ in switches)
    assert result == ((lowest, bool(fixed)) if fixed <= {lowest} else None)


def test_the_least_of_what_is_known():
    assert least(None, 3.0, 2.0) == 2.0
    assert least(None) is None
