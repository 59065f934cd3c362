"""Bounds how far a contribution may be ahead of the furthest complete one; switches drop anything beyond.

S is the window of the job's hosts, N the number of its shards, R the length of a shard's turn
(xla_ffi/host/window/sharding.h). A switch knows c, the furthest position to which all of its workers have contributed;
at the start, where the job begins. A host sends p < low + S, where low is its first position without a result, or
p < low + 3S if a gap begins below low + S. How far can p be from c?

1. Every position below low is complete, or was skipped, or lies in a gap (docs/internals/protocol.md). A line of the
   order begins behind a gap of 2S positions at most, where rank 0 deviated. Skipped positions belong to a sum that
   guessed its exponents. It ends with at most 4 skipped positions, and the next one may begin with as many; in between
   is an exponent chunk, which is complete.
2. One shard. Let z be the last complete position below low. All ranks contributed to it, so c >= z at every switch of a
   tree. Behind it are at most 4 skipped positions and one gap: low <= z + 1 + 4 + 2S, so p <= z + 5S + 4. A sum guesses
   only if S is at least 3, so for all powers of two p <= c + 6S.
3. Several shards. Gaps are whole turns: 2S is a multiple of N R. So the positions that aren't in gaps take turns of R,
   whatever lines they belong to, and the last N R + R - 1 of them below low hold a whole turn of this shard. A sum that
   guesses has at most R positions (window_of_guesses in sharding.h), so it skips less than R/2, and fewer than R are
   skipped in a row. So one position of that turn, z, is complete. Behind it, up to low, are fewer than (N + 1) R of
   these positions, and at most as many gaps, as each stands ahead of a line's first position. So, as N R <= S and
   R <= S/2, p < z + (N + 1) R (1 + 2S) - 2S + 3S <= z + 2S (N + 1) R + 5S/2 < z + 2S ((N + 1) R + 2).

The same holds for contributions of rank 0's followers on a void prediction: they lie in their windows, too. What a rack
completes of it makes c larger, and is no further ahead than its sender's low + S.

c only grows, so earlier contributions are in reach as well. Those behind c need no bound: a slot version that
holds anything takes it for stale. One that is still empty takes it, and gives it up for the next contribution of a
worker, unless that is more than 2^31 ahead of it: so a forged packet that lies 2^31 behind does the harm of one that is
too far ahead, in the first window of a job, and only if its sequence is among the few that are in reach 2^31 later.
"""

import math

from jax_passing.config import SHARDS_MAX

REACH_MAX = (1 << 31) - 1  # nothing lies further ahead


def _longest_run(shards: int) -> int:
    """Returns the most that R is, where shards have slots for it: LongestRun in sharding.h. Turns of long chunks are
    shorter, but a switch doesn't know how long the job's are: the path above another of its switches may carry less."""
    return 32 if shards <= 8 else 1 << (128 // shards).bit_length() - 1


def reach(slot_count: int, shards: int) -> int:
    """Returns the reach. `slot_count`: of the job at one switch, and so no fewer than S, unless each shard has but one
    of them."""
    assert 1 <= shards <= SHARDS_MAX, shards
    window = max(slot_count, shards)
    if shards == 1:
        return 6 * window
    run = min(_longest_run(shards), window // shards)
    return 2 * window * ((shards + 1) * run + 2)


def reach_at_planes(slot_count: int, switches: int, planes: int, threads: int) -> int:
    """Returns the same where each switch is `planes` shards, with so many slots each, and each of a host's threads has
    its part of them. Other switches of the job may be fewer."""
    shards = [switches * fewer for fewer in range(1, planes + 1) if planes % fewer == 0]
    numbers = [all_of_them // math.gcd(all_of_them, threads) for all_of_them in shards]
    return max(reach(slot_count * planes, number) for number in numbers)
