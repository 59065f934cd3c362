#!/usr/bin/env bash
# BatchNorm of flax computes the variance as the mean of squares minus the square of the mean, in float32, and that is
# its default (use_fast_variance=True). Where a feature's mean is far above its deviation, the difference is rounding:
# with mean 10,000 and deviation 1, the outputs have deviations of about 300, or .25, instead of 1. Both linen and nnx do
# so; use_fast_variance=False is right. Seen with flax 0.12.8. jax_passing's example of flax.nnx sets the argument, and
# its page names it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 flax==0.12.8
cat >"$folder/normalise.py" <<'PYTHON'
import flax
import jax
import numpy as np
from flax import linen, nnx

x = (10_000 + np.random.default_rng(0).normal(size=(4096, 4))).astype(np.float32)


def by_linen(fast):
    layer = linen.BatchNorm(use_running_average=False, use_fast_variance=fast)
    return layer.apply(layer.init(jax.random.key(0), x), x, mutable=["batch_stats"])[0]


def by_nnx(fast):
    return nnx.BatchNorm(4, use_running_average=False, use_fast_variance=fast, rngs=nnx.Rngs(0))(x)


print("flax", flax.__version__, "jax", jax.__version__)
for name, normalised in (("linen", by_linen), ("nnx", by_nnx)):
    for fast in (True, False):
        deviations = np.std(np.asarray(normalised(fast), np.float64), axis=0)
        print(f"{name}.BatchNorm(use_fast_variance={fast}): deviations {deviations}, where 1 is right")
        right = np.allclose(deviations, 1, atol=0.01)
        assert right != fast, "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/normalise.py"
