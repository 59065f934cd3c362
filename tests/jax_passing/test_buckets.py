import itertools

from hypothesis import given
from hypothesis import strategies as st

from jax_passing.buckets import DEFAULT_BUCKET_BYTES, Leaf, make_buckets

LEAVES = st.lists(st.builds(Leaf, st.sampled_from(["float32", "bfloat16", "int32"]), st.integers(0, 300)))


@given(LEAVES, st.integers(1, 500))
def test_each_leaf_once_in_buckets_of_one_dtype_within_the_limit(leaves, bucket_bytes):
    buckets = make_buckets(leaves, bucket_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(leaves)))
    for bucket in buckets:
        assert bucket == sorted(bucket)
        assert len({leaves[index].dtype for index in bucket}) == 1
        assert len(bucket) == 1 or sum(leaves[index].size_bytes for index in bucket) <= bucket_bytes
    assert [bucket[0] for bucket in buckets] == sorted(bucket[0] for bucket in buckets)


@given(LEAVES, st.integers(1, 500))
def test_no_two_neighbours_of_one_dtype_would_fit_together(leaves, bucket_bytes):
    buckets = make_buckets(leaves, bucket_bytes)
    by_dtype = {}
    for bucket in buckets:
        by_dtype.setdefault(leaves[bucket[0]].dtype, []).append(bucket)
    for same_dtype in by_dtype.values():
        for bucket, following in itertools.pairwise(same_dtype):
            used = sum(leaves[index].size_bytes for index in bucket)
            assert used + leaves[following[0]].size_bytes > bucket_bytes


def test_examples():
    f32, i32 = "float32", "int32"
    leaves = [Leaf(f32, 40), Leaf(i32, 8), Leaf(f32, 60), Leaf(f32, 1), Leaf(f32, 500), Leaf(i32, 8)]
    assert make_buckets(leaves, 100) == [[0, 2], [1, 5], [3], [4]]
    assert make_buckets(leaves) == [[0, 2, 3, 4], [1, 5]]
    assert make_buckets([]) == []
    assert DEFAULT_BUCKET_BYTES == 25 * 2**20
