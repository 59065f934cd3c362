import itertools

from hypothesis import given
from hypothesis import strategies as st

from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES, Leaf, make_buckets

MIB = 1 << 20
LEAVES = st.lists(
    st.builds(Leaf, st.sampled_from(["float32", "bfloat16", "int32"]), st.integers(0, 3 * MIB), st.sampled_from("abc"))
)
LIMITS = st.integers(1, 5 * MIB)


def total_bytes(leaves, bucket):
    return sum(leaves[index].size_bytes for index in bucket)


@given(LEAVES, LIMITS)
def test_each_leaf_once_in_buckets_of_one_dtype_within_the_limit(leaves, bucket_bytes):
    buckets = make_buckets(leaves, bucket_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(leaves)))
    for bucket in buckets:
        assert len({leaves[index].dtype for index in bucket}) == 1
        assert len(bucket) == 1 or total_bytes(leaves, bucket) <= bucket_bytes


@given(LEAVES, LIMITS)
def test_the_last_first(leaves, bucket_bytes):
    def key(index):
        return leaves[index].path, index

    buckets = make_buckets(leaves, bucket_bytes)
    for bucket in buckets:
        assert bucket == sorted(bucket, key=key, reverse=True)
    ends = [bucket[-1] for bucket in buckets]
    assert ends == sorted(ends, key=key, reverse=True)


def test_numbers_in_paths_count_as_numbers():
    paths = ["['Dense_0']", "['Dense_1']", "['Dense_10']", "['Dense_2']", "['Dense_9']['a']", "['Dense_9']['b']"]
    buckets = make_buckets([Leaf("float32", 4, path) for path in paths], DEFAULT_BUCKET_BYTES)
    assert buckets == [[2, 5, 4, 3, 1, 0]]


@given(LEAVES, LIMITS)
def test_no_two_neighbours_of_one_dtype_would_fit_together(leaves, bucket_bytes):
    by_dtype = {}
    for bucket in make_buckets(leaves, bucket_bytes):
        if total_bytes(leaves, bucket) <= bucket_bytes:  # not a large leaf on its own
            by_dtype.setdefault(leaves[bucket[0]].dtype, []).append(bucket)
    for same_dtype in by_dtype.values():
        limits = itertools.chain([min(FIRST_BUCKET_BYTES, bucket_bytes)], itertools.repeat(bucket_bytes))
        for (bucket, following), limit in zip(itertools.pairwise(same_dtype), limits, strict=False):
            assert total_bytes(leaves, bucket) + leaves[following[0]].size_bytes > limit


def test_examples():
    f32, i32 = "float32", "int32"
    leaves = [
        Leaf(f32, 40, ""),
        Leaf(i32, 8, ""),
        Leaf(f32, 60, ""),
        Leaf(f32, 1, ""),
        Leaf(f32, 500, ""),
        Leaf(i32, 8, ""),
    ]
    assert make_buckets(leaves, 100) == [[4], [3, 2], [5, 1], [0]]
    assert make_buckets(leaves, DEFAULT_BUCKET_BYTES) == [[5, 1], [4, 3, 2, 0]]
    assert make_buckets([], DEFAULT_BUCKET_BYTES) == []
    assert DEFAULT_BUCKET_BYTES == 25 * MIB


def test_the_first_bucket_is_small():
    leaves = [Leaf("float32", MIB // 2, "")] * 64
    assert [len(bucket) for bucket in make_buckets(leaves, DEFAULT_BUCKET_BYTES)] == [2, 50, 12]


def test_small_leaves_pass_a_large_one():
    small = Leaf("float32", 10, "")
    assert make_buckets([small, Leaf("float32", 30 * MIB, ""), small], DEFAULT_BUCKET_BYTES) == [[1], [2, 0]]


def test_the_leaves_of_gpt2_small():
    """148 leaves of float32, biases of 3 KB among them: none but the last ones, which are there first, goes alone."""
    d = 768
    layer = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    sizes = [4 * n for n in (50257 * d, 1024 * d, *(layer * 12), d, d)]
    leaves = [Leaf("float32", size, "") for size in sizes]
    buckets = make_buckets(leaves, DEFAULT_BUCKET_BYTES)
    assert len(leaves) == 148
    assert sum(sizes) == 4 * 124_439_808
    assert len(buckets) == 18
    assert buckets[0] == [147, 146, 145]
    assert all(total_bytes(leaves, bucket) > 16 * MIB for bucket in buckets[1:])
