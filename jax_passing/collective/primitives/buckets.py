"""Decides which leaves share a call, by nothing but their paths, dtypes and sizes: alike on every host. Pure."""

import re
from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_BUCKET_BYTES = 25 << 20
"""Large enough that the fixed cost of a call doesn't show, small enough that the first sums start early."""

FIRST_BUCKET_BYTES = 1 << 20
"""A bucket's sum starts when its last leaf is there: the first one shouldn't wait for many."""


class Leaf(NamedTuple):
    """An array, as far as it matters here.

    Attributes:
      dtype: anything that can be compared and hashed.
      size_bytes: total of its elements.
      path: in its tree: "['Dense_10']['kernel']".
    """

    dtype: object
    size_bytes: int
    path: str


def make_buckets(leaves: Sequence[Leaf], bucket_bytes: int) -> list[list[int]]:
    """Groups leaves into buckets of one dtype, in the order in which a backward pass is likely to finish them.

    That is the last first: models list their parameters from the input on, and the backward pass goes the other way.
    Numbers in paths count as numbers, as dicts come sorted by text ("Dense_10" before "Dense_2"). What a host's own
    program would tell, which leaf is there first, isn't asked: hosts may differ in their local work. The first bucket
    of a dtype has at most FIRST_BUCKET_BYTES, the others at most `bucket_bytes`; a larger leaf has a bucket of its own,
    past which the next ones still join those before.

    Returns: indices into `leaves`, each exactly once; buckets in the order in which they are complete.
    """
    order = sorted(range(len(leaves)), key=lambda index: (natural(leaves[index].path), index), reverse=True)
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
    position = {index: nth for nth, index in enumerate(order)}
    return sorted(closed, key=lambda bucket: position[bucket[-1]])


def natural(path: str) -> list[str | int]:
    """Returns text and numbers in turns, a key that sorts paths by their numbers, too."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path)]
