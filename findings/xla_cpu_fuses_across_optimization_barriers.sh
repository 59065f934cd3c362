#!/usr/bin/env bash
# A mean of gradients and the optimizer's step on it give other bits in one jitted program than in two: XLA:CPU makes a
# division by a number, constant or not, a product with 1/N, and LLVM fuses one of the products of 0.9 * m + g * (1/N)
# with the sum. Neither jax.lax.optimization_barrier nor jax.lax.reduce_precision(g, 8, 23) between the two keeps them
# apart, as both are gone before loops are compiled: no barrier makes such a step of SGD reproducible on CPUs. A division
# by an array stays one, and then the bits are equal. Seen with jax 0.10.2 on x86-64 with FMA instructions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
grep -qw fma /proc/cpuinfo || { echo "skipped: this processor has no FMA instructions" && exit; }
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat >"$folder/barrier.py" <<'PYTHON'
import jax
import numpy as np
import optax

optimizer = optax.sgd(0.1, momentum=0.9)
random = np.random.default_rng(0)
sums, momentum = random.normal(size=(2, 1920)).astype(np.float32)
counts = np.full_like(sums, 6)
state = jax.tree.map(lambda _: momentum, optimizer.init(momentum))


def told(name, mean, is_equal):
    """Compares with the same in two programs."""
    one, _ = jax.jit(lambda sums, counts, state: optimizer.update(mean(sums, counts), state))(sums, counts, state)
    two, _ = jax.jit(optimizer.update)(jax.jit(mean)(sums, counts), state)
    equal = (np.asarray(one) == np.asarray(two)).mean()
    print(f"{name}: {equal:.1%} of the elements have the bits of two programs")
    assert (equal == 1) == is_equal, "the behaviour has changed"


print("jax", jax.__version__)
told("one program", lambda sums, _: sums / 6, False)
told("with optimization_barrier", lambda sums, _: jax.lax.optimization_barrier(sums / 6), False)
told("with reduce_precision", lambda sums, _: jax.lax.reduce_precision(sums / 6, 8, 23), False)
told("by a number that the program is given", lambda sums, counts: sums / counts[0], False)
told("by an array that the program is given", lambda sums, counts: sums / counts, True)
PYTHON
JAX_PLATFORMS=cpu timeout 120 "$folder/venv/bin/python" "$folder/barrier.py"
