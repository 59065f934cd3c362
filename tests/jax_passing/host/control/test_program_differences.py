"""Every difference between two hosts' programs is found and named, with what to do about it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jax_passing.host.control.program_differences import difference
from jax_passing.host.control.programs import bounded
from support.host.program_infos import PLACE, identity, program

HERE = PLACE[0]


def compare(own, rank_0s, rank=1):
    """Each of them: changes to the sum, several sums, or a program."""

    def made(one):
        if isinstance(one, dict):
            one = [identity(**one)]
        return bounded(program(*one) if isinstance(one, list) else one)

    ours, theirs = made(own), made(rank_0s)
    assert ours != theirs
    text = difference(ours, theirs, rank, 1)
    assert text.startswith("Hosts run different programs. ")
    assert text.endswith(".")
    assert len(text) < 8 * 1024
    return text


def tree(*names, dtype="float32[]"):
    return {"leaves": [[f"['{name}']", dtype] for name in names]}


def test_a_message_says_it_all():
    assert compare(tree("loss", "memory"), tree("loss", "learning_rate")) == (
        "Hosts run different programs. In jit_step, 2 devices (program 1 with sums over hosts on devices 0,1): at "
        "train.py:41:9 in step rank 1 sums {loss, memory}, rank 0 {loss, learning_rate}. Sum the same tree on all "
        "hosts."
    )


@pytest.mark.parametrize(
    ("own", "rank_0s", "message"),
    [
        (
            {"leaves": [["['w']", "float32[3,5]"]]},
            {},
            "rank 1 sums ['w'] as float32[3,5], rank 0 as float32[3,4]. Sum arrays",
        ),
        ({"leaves": [["['w']", "bfloat16[3,4]"]]}, {}, "rank 1 sums ['w'] as bfloat16[3,4], rank 0 as float32[3,4]"),
        (
            {"leaves": [["", "int32[2]"]]},
            {"leaves": [["", "int32[3]"]]},
            "sums an array as int32[2], rank 0 as int32[3]",
        ),
        ({"leaves": [["", "int32[2]"]]}, {}, "rank 1 sums an array int32[2], rank 0 {w}. Sum the same tree"),
        ({"leaves": [["['a']['b']", "int32[2]"]]}, {}, "rank 1 sums {['a']['b']}, rank 0 {w}."),
        (
            {"bucket_bytes": 1 << 20},
            {},
            "rank 1 sums with bucket_bytes 1048576, rank 0 with 26214400. Give the same bucket",
        ),
        ({"strategy": "flat"}, {}, "rank 1 sums with strategy flat, rank 0 with passing. Give the same strategy"),
        ({"axes": ["d", "i"]}, {}, "rank 1 sums with axes ['d', 'i'], rank 0 with ['d']. Give the same axes"),
        ({"op": "max"}, {}, "rank 1 sums with op max, rank 0 with sum."),
        ({"new": 3}, {}, "rank 1 sums with new 3, rank 0 with nothing."),
        ({"kind": "t"}, {}, f"rank 1 sums at {HERE} (in a derivative), where rank 0 doesn't; rank 0 sums at {HERE}"),
        ({"bucket": 1}, {}, "packs the same leaves into other buckets"),
        ({"call": 1}, {}, "or sums them in other calls"),
    ],
)
def test_one_field(own, rank_0s, message):
    assert message in compare(own, rank_0s)


def test_one_field_of_two_that_depend_on_each_other():
    text = compare({"leaves": [["['w']", "f32[9]"]], "strategy": "native"}, {})
    assert "with strategy native, rank 0 with passing, and rank 1 sums ['w'] as f32[9], rank 0 as float32[3,4]" in text
    assert "Give the same strategy on all hosts. Sum arrays of the same shapes" in text


def test_sums_that_one_host_has_alone():
    other = identity(place=["train.py:55:3 in log"])
    assert "rank 1 sums at train.py:55:3 in log, where rank 0 doesn't. All hosts must" in compare(
        [identity(), other], {}
    )
    assert "rank 0 sums at train.py:55:3 in log, where rank 1 doesn't. All hosts must" in compare(
        {}, [identity(), other]
    )
    many = [identity(place=[f"train.py:{line}:3 in log"]) for line in range(10, 20)]
    assert "train.py:13:3 in log and 6 more, where rank 0 doesn't" in compare([identity(), *many], {})


def test_a_helper_that_is_called_from_elsewhere():
    elsewhere = {"place": [HERE, "train.py:99:5 in evaluate"]}
    text = compare(elsewhere, {})
    assert f"rank 1 sums at {HERE}, called from train.py:99:5 in evaluate, where rank 0 doesn't" in text
    assert f"rank 0 sums at {HERE}, called from {PLACE[1]}, where rank 1 doesn't" in text


def test_numbers_of_calls():
    calls = [identity(call=call) for call in range(3)]
    assert f"at {HERE} rank 1 sums 3 times, rank 0 1 time." in compare(calls, calls[:1])
    assert f"at {HERE} rank 1 sums 1 time, rank 0 2 times." in compare(calls[:1], calls[:1] * 2)
    buckets = [identity(call=call, bucket=bucket) for call in range(2) for bucket in range(3)]
    assert f"at {HERE} rank 1 sums 2 times, rank 0 1 time." in compare(buckets, buckets[:3])


def test_leaves_in_several_buckets():
    ours = [identity(bucket=0, **tree("a", "b")), identity(bucket=1, **tree("c"))]
    theirs = [identity(bucket=0, **tree("a")), identity(bucket=1, **tree("b", "d"))]
    assert "rank 1 sums {a, b, c}, rank 0 {a, b, d}" in compare(ours, theirs)


def test_large_trees_show_what_differs_alone():
    names = [f"layer {index}" for index in range(30)]
    assert "rank 1 sums {memory}, which rank 0 doesn't, and rank 0 sums {loss}, which rank 1 doesn't." in compare(
        tree(*names, "memory"), tree(*names, "loss")
    )
    assert "step rank 0 sums {loss}, which rank 1 doesn't." in compare(tree(*names), tree(*names, "loss"))
    assert "{layer 10, layer 11, layer 12, layer 13, layer 14, layer 15, layer 16, layer 17 and 12 more}" in compare(
        tree(*names), tree(*names[:10])
    )
    text = compare(tree(*names), tree(*names, dtype="int32[]"))
    assert "['layer 3'] as float32[], rank 0 as int32[] and 26 more leaves" in text


def test_many_locations_that_differ():
    ours, theirs = ([identity(place=[f"a.py:{line}"], op=op) for line in range(10, 20)] for op in ("sum", "max"))
    text = compare(ours, theirs)
    assert "at a.py:13 rank 1 sums with op sum, rank 0 with max; and so do 6 other locations. Give" in text


def test_programs_of_different_names():
    text = compare(program(name="jit_a"), program(identity(place=["eval.py:3:1 in test"]), name="jit_b"))
    assert "Instead of rank 0's jit_b, which sums at eval.py:3:1 in test, rank 1 runs jit_a (program 1" in text
    assert f"which sums at {HERE}. All hosts must" in text


def test_the_line_is_named():
    sums = [identity(stream="data", op=op) for op in ("sum", "max")]
    text = difference(*(bounded(program(one, devices="3")) for one in sums), 7, 4)
    assert "(program 4 with sums over hosts on devices 3 in stream 'data'): at" in text
    assert "rank 7 sums" in text


# Modules that must be equal.


def module(summary, digest="ab12"):
    copies = [identity(**tree("total"))] * 2
    return program(*copies, identity(call=5, **tree("x")), fingerprint=f"{digest * 16} {summary}".strip())


@pytest.mark.parametrize(
    ("own", "rank_0s", "message"),
    [
        (
            "14 fusion, 3 dot; (f32[4,8])->f32[4]",
            "13 fusion, 3 dot; (f32[4,8])->f32[4]",
            "has 14 fusion, rank 0 13 fusion.",
        ),
        ("14 fusion; (f32[4])->f32[4]", "14 fusion, 2 dot; (f32[4])->f32[4]", "rank 1 has no dot, rank 0 2 dot."),
        (
            "3 dot; (f32[4,8])->f32[4]",
            "3 dot; (f32[5,8])->f32[4]",
            "has (f32[4,8])->f32[4], rank 0 (f32[5,8])->f32[4].",
        ),
        ("3 dot", "3 dot; (f32[5,8])->f32[4]", "rank 1 has nothing, rank 0 (f32[5,8])->f32[4]."),
        ("3 dot; x", "4 dot; y", "rank 1 has 3 dot, rank 0 4 dot; rank 1 has x, rank 0 y."),
    ],
)
def test_fingerprints(own, rank_0s, message):
    text = compare(module(own), module(rank_0s, "cd34"))
    assert f"the sums at {HERE} are there several times, and only XLA's order tells them apart; for that" in text
    assert message in text
    assert "Put each of the equal calls on a line of its own" in text


@pytest.mark.parametrize("summary", ["3 dot; (f32[4])->f32[4]", ""])
def test_fingerprints_whose_summaries_are_equal(summary):
    text = compare(module(summary), module(summary, "cd34"))
    assert "they differ: in something other than the numbers of operations and the shapes" in text


def test_one_host_without_a_fingerprint():
    assert "rank 1 has nothing, rank 0 3 dot" in compare(program(), program(fingerprint="ab12 3 dot"))


# Whatever differs.

FIELDS = {
    "axes": st.lists(st.sampled_from("dij"), min_size=1, max_size=2, unique=True),
    "bucket": st.integers(0, 2),
    "bucket_bytes": st.sampled_from([1, 1 << 20, 26214400]),
    "call": st.integers(0, 2),
    "kind": st.sampled_from(["", "j", "t", "jt"]),
    "leaves": st.dictionaries(st.sampled_from(["", "['w']", "['v']", "[0]"]), st.sampled_from(["f32[]", "s32[2]"])).map(
        lambda leaves: [list(leaf) for leaf in leaves.items()]
    ),
    "op": st.sampled_from(["sum", "max"]),
    "place": st.lists(st.sampled_from(["a.py:1:1 in f", "b.py:2:1 in g", "c.py:3:1 in h"]), max_size=3),
    "strategy": st.sampled_from(["passing", "flat"]),
}
SUM = st.fixed_dictionaries(FIELDS)


@given(st.lists(SUM, max_size=5), SUM, st.sampled_from(sorted(FIELDS)), st.data())
def test_every_single_field_is_found_and_named(others, one, field, data):
    changed = one | {field: data.draw(FIELDS[field])}
    assume(changed != one)
    several = [identity(**other) for other in others]
    text = compare([*several, identity(**changed)], [*several, identity(**one)])
    values = {"axes", "bucket_bytes", "op", "strategy"}
    if field in values and not others:
        assert f"rank 1 sums with {field} {changed[field]}, rank 0 with {one[field]}" in text
    if not others:
        assert (changed["place"] or ["an unknown location"])[0] in text


@given(st.lists(SUM, max_size=6), st.lists(SUM, max_size=6))
def test_any_two_programs(ours, theirs):
    own, rank_0s = ([identity(**one) for one in sums] or [identity(op="none")] for sums in (ours, theirs))
    assume(sorted(own) != sorted(rank_0s))
    compare(own, rank_0s)
