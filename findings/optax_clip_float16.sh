#!/usr/bin/env bash
# optax.clip_by_global_norm squares float16 gradients in float16. A thousand elements of 30 have the norm 949, but their
# squares sum to more than 65,504, so optax.global_norm says inf, and the clipped gradients are all 0: training stands
# still without a NaN or an error. In bfloat16 and float32 it is right. Seen with optax 0.2.8. jax_passing sums float16
# gradients as float32, and gives them back as float16; its page "Coming from lax.psum" says to cast before clipping.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat >"$folder/clip.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import optax

print("optax", optax.__version__, "jax", jax.__version__)
for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
    gradients = jnp.full(1000, 30, dtype)
    clip = optax.clip_by_global_norm(1.0)
    clipped, _ = clip.update(gradients, clip.init(gradients))
    norm = float(optax.global_norm(gradients))
    print(f"{dtype.__name__}: norm {norm:.4g}, clipped to 1: norm {np.linalg.norm(np.asarray(clipped, float)):.4g}")
    assert (norm == np.inf and not clipped.any()) == (dtype == jnp.float16), "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/clip.py"
