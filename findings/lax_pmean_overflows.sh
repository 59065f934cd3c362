#!/usr/bin/env bash
# jax.lax.pmean sums in the operand's dtype and divides then, so the mean of equal values isn't that value: of four times
# 100 in int8 it is -28, of four times 2**30 in int32 it is 0, of four times 40,000 in float16 inf. jnp.mean of the same
# array gives 100, 2**30 and 40,000. Seen with jax 0.10.2, on four CPU devices of one process. jax_passing.pmean of
# integers wraps like JAX's; its page "Coming from lax.psum" says to cast before a mean.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/means.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
pmean = jax.jit(jax.shard_map(lambda x: jax.lax.pmean(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
print("jax", jax.__version__, "on", len(jax.devices()), "devices")
for dtype, value, found in (("int8", 100, -28), ("int32", 2**30, 0), ("float16", 40_000, np.inf)):
    x = jnp.full(4, value, dtype)
    ours, theirs = float(pmean(x)[0]), float(jnp.mean(x))
    print(f"four times {value} in {dtype}: lax.pmean {ours}, jnp.mean {theirs}")
    assert (ours, theirs) == (found, value), "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 "$folder/venv/bin/python" "$folder/means.py"
