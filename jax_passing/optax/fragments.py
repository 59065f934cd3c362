"""This file decides which parameters are synchronised together, and at which steps: alike on all hosts. Pure."""

from collections.abc import Sequence

from jax_passing.collective.primitives.buckets import natural
from jax_passing.errors import ConfigError


def make_fragments(paths: Sequence[str], sizes_bytes: Sequence[int], count: int) -> list[list[int]]:
    """Deals leaves out to `count` fragments of like sizes.

    The largest come first, each to the fragment with the fewest bytes so far, and equal ones in the order of their
    paths. So equal layers are dealt out in turns: a fragment has layers from all over the model, which trains better
    than one with neighbours does (Douillard et al., Streaming DiLoCo, 2025, "strided" fragments).

    Returns: Indices of leaves, each exactly once, in ascending order in each fragment.

    Raises:
      ConfigError: there are fewer leaves than fragments.
    """
    if not paths:
        raise ConfigError("diloco: the parameters that init was given have no arrays.")
    if count > len(paths):
        raise ConfigError(
            f"diloco(fragments={count}): these parameters have {len(paths)} arrays, and a fragment has at least one. "
            f"Write fragments={len(paths)} or less."
        )
    order = sorted(range(len(paths)), key=lambda index: (-sizes_bytes[index], natural(paths[index]), index))
    fragments: list[list[int]] = [[] for _ in range(count)]
    used_bytes = [0] * count
    for index in order:
        # Empty ones first: arrays without elements would leave some without any.
        smallest = min(range(count), key=lambda each: (bool(fragments[each]), used_bytes[each], each))
        fragments[smallest].append(index)
        used_bytes[smallest] += sizes_bytes[index]
    return [sorted(fragment) for fragment in fragments]


def offset(fragment: int, count: int, every: int) -> int:
    """Returns after which step of every `every` a fragment is synchronised: those of all fragments are spread out."""
    return fragment * every // count
