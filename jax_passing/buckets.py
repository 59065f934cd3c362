"""Which leaves share a call. Pure, and alike on every host: decided by the leaves' order, dtypes and sizes alone."""

from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_BUCKET_BYTES = 25 << 20
"""Large enough that the fixed cost of a call doesn't show, small enough that the first sums start early."""


class Leaf(NamedTuple):
    """What matters of an array."""

    dtype: object
    size_bytes: int


def make_buckets(leaves: Sequence[Leaf], bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> list[list[int]]:
    """Groups leaves into buckets of one dtype and at most `bucket_bytes` each.

    Leaves keep their order within a bucket, buckets are ordered by their first leaf, and a leaf larger than
    `bucket_bytes` has a bucket of its own.

    Returns: indices into `leaves`, each exactly once.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[object, tuple[list[int], int]] = {}  # by dtype, with the bytes in it
    for index, leaf in enumerate(leaves):
        bucket, used = open_buckets.get(leaf.dtype, ([], bucket_bytes + 1))
        if used + leaf.size_bytes > bucket_bytes:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_buckets[leaf.dtype] = bucket, used + leaf.size_bytes
    return buckets
