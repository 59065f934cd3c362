"""Measures the error of float32 sums of a GPT-2's gradients: here, with wider blocks, and added up in float32.

Each host has the gradient of rows of its own, of Python's standard library. The error of an element is relative to its
exact sum; printed are the median, the largest but for one element in 1,000, and the root mean square error of the leaf
over that of its exact sum:

    PYTHONPATH=examples python benchmarks/micro/float32_error.py

"1440" are the blocks that jax_passing had before: one exponent for 1,440 elements. "float32" adds up one host after the
other, as rings do.
"""

import jax
import numpy as np

import train_gpt2
from models import gpt2

WORLD_SIZES = (2, 8, 64)
ROWS = 2
CONFIG = gpt2.Config(layers=4, width=256, heads=4, vocabulary=256, context=64)
LEAVES = {
    "embedding": ("Embed_0", "embedding"),
    "positions": ("positions",),
    "LayerNorm, scale": ("layer_1", "norm_1", "scale"),
    "LayerNorm, bias": ("layer_1", "norm_2", "bias"),
    "attention, bias": ("layer_1", "queries_keys_values", "bias"),
    "feed forward, kernel": ("layer_1", "wide", "kernel"),
}


def block_elements(count: int) -> int:
    """As BlockElements of xla_ffi/host/numbers/fixed_point.cc."""
    least = -(-count // 120)
    return min(1 << (least - 1).bit_length(), 256)


def fixed_point(ranks: np.ndarray, block: int) -> np.ndarray:
    """Sums float32[H, n] as xla_ffi/host/numbers/fixed_point.cc does, with this many elements a block."""
    world_size, count = ranks.shape
    padded = np.pad(ranks.astype(np.float64), ((0, 0), (0, -count % block))).reshape(world_size, -1, block)
    headroom_bits = (world_size - 1).bit_length()
    exponents = np.frexp(np.abs(padded).max(axis=(0, 2)))[1]
    units = 2.0 ** np.maximum(exponents - (30 - headroom_bits), -149)[:, np.newaxis]
    return (np.rint(padded / units).sum(axis=0) * units).reshape(-1)[:count].astype(np.float32)


def in_order(ranks: np.ndarray) -> np.ndarray:
    total = ranks[0]
    for rank in ranks[1:]:
        total = total + rank
    return total


def gradients_of_hosts(count: int) -> list[dict]:
    model = gpt2.GPT2(CONFIG)
    loss = gpt2.loss_of(model)
    text = train_gpt2.read_text(None)
    starts = np.random.default_rng(0).integers(0, len(text) - CONFIG.context, (count, ROWS))
    tokens = text[starts[..., np.newaxis] + np.arange(CONFIG.context + 1)].astype(np.int32)
    params = model.init(jax.random.key(0), tokens[0, :, :-1])["params"]
    gradient = jax.jit(jax.grad(lambda params, batch: loss(params, batch)[0]))
    return [jax.device_get(gradient(params, {"tokens": rows})) for rows in tokens]


def main() -> None:
    hosts = gradients_of_hosts(max(WORLD_SIZES))
    print(f"{'leaf':22} {'H':>3}", *(f"{name:>27}" for name in ("here", "1440", "float32")))
    for name, path in LEAVES.items():
        leaves = []
        for leaf in hosts:
            for key in path:
                leaf = leaf[key]
            leaves.append(leaf.reshape(-1))
        every = np.stack(leaves)
        for world_size in WORLD_SIZES:
            ranks = every[:world_size]
            exact = ranks.astype(np.float64).sum(axis=0)
            columns = []
            for sums in (fixed_point(ranks, block_elements(ranks.shape[1])), fixed_point(ranks, 1440), in_order(ranks)):
                error = np.abs(sums.astype(np.float64) - exact)
                relative = np.sort(error[exact != 0] / np.abs(exact[exact != 0]))
                rms = np.sqrt(np.mean(error**2) / np.mean(exact**2))
                columns.append(f"{np.median(relative):9.1e}{relative[int(0.999 * len(relative))]:9.1e}{rms:9.1e}")
            print(f"{name:22} {world_size:3}", *columns)


if __name__ == "__main__":
    main()
