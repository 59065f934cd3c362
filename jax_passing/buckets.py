"""Which leaves share a call. Pure, and alike on every host: decided by the leaves' order, depths, dtypes and sizes."""

from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_BUCKET_BYTES = 25 << 20
"""Large enough that the fixed cost of a call doesn't show, small enough that the first sums start early."""

FIRST_BUCKET_BYTES = 1 << 20
"""A bucket's sum starts when its last leaf is there: the first one shouldn't wait for many."""


class Leaf(NamedTuple):
    """What matters of an array.

    Attributes:
      dtype: anything that can be compared and hashed.
      size_bytes: of its elements.
      depth: how many operations must run one after the other before it is there.
    """

    dtype: object
    size_bytes: int
    depth: int = 0


def make_buckets(leaves: Sequence[Leaf], bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> list[list[int]]:
    """Groups leaves into buckets of one dtype, in the order in which a backward pass finishes them.

    That is by depth, and the last first where depths are equal: models list their parameters from the input on, and
    the backward pass goes the other way. The first bucket of a dtype has at most FIRST_BUCKET_BYTES, the others at most
    `bucket_bytes`; a larger leaf has a bucket of its own, past which the next ones still join those before.

    Returns: indices into `leaves`, each exactly once; buckets in the order in which they are complete.
    """
    order = sorted(range(len(leaves)), key=lambda index: (leaves[index].depth, -index))
    closed: list[list[int]] = []
    open_buckets: dict[object, tuple[list[int], int]] = {}  # by dtype, with the bytes in it
    limits: dict[object, int] = {}
    for index in order:
        dtype, size_bytes, _ = leaves[index]
        limit = limits.get(dtype, min(FIRST_BUCKET_BYTES, bucket_bytes))
        bucket, used = open_buckets.get(dtype, ([], 0))
        if size_bytes > bucket_bytes:
            closed.append([index])
            continue
        if bucket and used + size_bytes > limit:
            closed.append(bucket)
            bucket, used = [], 0
            limits[dtype] = bucket_bytes
        bucket.append(index)
        open_buckets[dtype] = bucket, used + size_bytes
    closed += [bucket for bucket, _ in open_buckets.values()]
    position = {index: place for place, index in enumerate(order)}
    return sorted(closed, key=lambda bucket: position[bucket[-1]])
