#!/usr/bin/env bash
# optax.adam keeps its second moment in the parameters' dtype. In bfloat16 it stands still at half of what it should be:
# with b2=0.999 an addition of a thousandth no longer changes it, so after 3,000 gradients of 1 it is 0.5, not 0.95, and
# the update is 1.38 learning rates, not 1. mu_dtype changes the first moment alone. Seen with optax 0.2.8. In float32 it
# is right. jax_passing sums bfloat16 gradients as they are; its page "Coming from lax.psum" says to keep the parameters
# that an optimizer holds in float32, as its examples do with --dtype bfloat16.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat >"$folder/moments.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

STEPS, RATE = 3000, 1e-3

print("optax", optax.__version__, "jax", jax.__version__)
for dtype in (jnp.bfloat16, jnp.float32):
    optimizer = optax.adam(RATE, mu_dtype=jnp.float32)
    one = jnp.ones((), dtype)
    state = jax.lax.fori_loop(0, STEPS, lambda _, state: optimizer.update(one, state)[1], optimizer.init(one))
    moment = float(state[0].nu)
    rates = -float(optimizer.update(one, state)[0]) / RATE
    print(f"{dtype.__name__}: second moment {moment:.3f} after {STEPS} gradients of 1, update {rates:.3f} learning rates")
    assert (moment < 0.55) == (dtype == jnp.bfloat16), "the behaviour has changed"
    assert (rates > 1.3) == (dtype == jnp.bfloat16), "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/moments.py"
