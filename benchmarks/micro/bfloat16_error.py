"""Measures the error of bfloat16 sums: packed in half lanes, in a ring that rounds at each hop, on a float32 wire.

Prints the root mean square error over that of the exact sum, for blocks of 1440 elements:

    python benchmarks/micro/bfloat16_error.py

"ring" rounds every partial sum to bfloat16, as NCCL's rings do; "float32" rounds once at the end, as `lax.psum` does on
CPU, where XLA widens bfloat16 to float32 and sends 4 bytes an element.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np

BLOCK = 1440
WORLD_SIZES = (2, 4, 8, 16, 32, 64)
ROUNDS = 30


def packed(ranks: np.ndarray) -> np.ndarray:
    """Sums bfloat16[H, n] to bfloat16[n] as xla_ffi/host/numbers/fixed_point.cc does for a block of one device."""
    elements = ranks.astype(np.float64)
    exponent = np.frexp(np.abs(elements).max())[1]
    headroom_bits = (len(ranks) - 1).bit_length()
    unit = 2.0 ** max(exponent - (15 - headroom_bits), -126)
    return (np.rint(elements / unit).sum(axis=0) * unit).astype(ml_dtypes.bfloat16)


def ring(ranks: np.ndarray) -> np.ndarray:
    total = ranks[0]
    for rank in ranks[1:]:
        total = (total + rank).astype(ml_dtypes.bfloat16)
    return total


def float32(ranks: np.ndarray) -> np.ndarray:
    return ranks.astype(np.float32).sum(axis=0).astype(ml_dtypes.bfloat16)


def beside_an_outlier(random: np.random.Generator, world_size: int, below: int) -> np.ndarray:
    """Normal elements 2^-below times as large as element 0."""
    ranks = random.normal(size=(world_size, BLOCK)) * 2.0**-below
    ranks[:, 0] = 1.9
    return ranks


DATA: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], int]] = {  # and the first element that counts
    "normal": (lambda random, h: random.normal(size=(h, BLOCK)), 0),
    "normal, alike on all ranks": (
        lambda random, h: random.normal(size=BLOCK) + 0.1 * random.normal(size=(h, BLOCK)),
        0,
    ),
    "heavy tails (Laplace cubed)": (lambda random, h: random.laplace(size=(h, BLOCK)) ** 3, 0),
    "2^-4 beside an outlier": (lambda random, h: beside_an_outlier(random, h, 4), 1),
    "2^-6 beside an outlier": (lambda random, h: beside_an_outlier(random, h, 6), 1),
    "2^-8 beside an outlier": (lambda random, h: beside_an_outlier(random, h, 8), 1),
}


def main() -> None:
    random = np.random.default_rng(0)
    print(f"{'elements':28} {'H':>3} {'packed':>9} {'ring':>9} {'float32':>9}")
    for name, (draw, first) in DATA.items():
        for world_size in WORLD_SIZES:
            errors = np.zeros(3)
            for _ in range(ROUNDS):
                ranks = draw(random, world_size).astype(ml_dtypes.bfloat16)
                exact = ranks.astype(np.float64).sum(axis=0)[first:]
                for column, method in enumerate((packed, ring, float32)):
                    difference = method(ranks).astype(np.float64)[first:] - exact
                    errors[column] += np.sqrt(np.mean(difference**2) / np.mean(exact**2)) / ROUNDS
            print(f"{name:28} {world_size:3}", *(f"{error:9.5f}" for error in errors))


if __name__ == "__main__":
    main()
