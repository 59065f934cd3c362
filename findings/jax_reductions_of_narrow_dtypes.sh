#!/usr/bin/env bash
# JAX adds float16 and bfloat16 up in float32, but float8 and float4 in their own dtype: the mean of 100 ones is 0.3125
# in float8_e5m2 and 0.6875 in float8_e4m3fn, and that of 100 halves is 1 in float4_e2m1fn. With dtype=jnp.float32 they
# are right. float8_e8m0fnu, the dtype of the scales of MX formats, has neither a zero nor an infinity. So jnp.zeros
# makes NaN of it, and jnp.sum and jnp.max, which begin with these, give NaN for any scales, while lax.psum and lax.pmax
# are right. Seen with jax 0.10.2 and 0.12.0.1 and ml_dtypes 0.6.0 (JAX's issue 19011 was the same maximum in
# float8_e4m3fn, which is mended). jax_passing.pmax takes all of them, psum says to cast first; its page "Coming from
# lax.psum" names the means.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0
cat >"$folder/reduce.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

print("jax", jax.__version__)
for dtype, value, found in (
    ("bfloat16", 1, 1),
    ("float16", 1, 1),
    ("float8_e5m2", 1, 0.3125),
    ("float8_e4m3fn", 1, 0.6875),
    ("float4_e2m1fn", 0.5, 1),
):
    x = jnp.full(100, value, dtype)
    mean, in_float32 = float(jnp.mean(x)), float(jnp.mean(x, dtype=jnp.float32))
    print(f"jnp.mean of 100 times {value} in {dtype}: {mean}, with dtype=jnp.float32 {in_float32}")
    assert (mean, in_float32) == (found, value), "the behaviour has changed"

scales = jnp.array([1, 2], jnp.float32).astype(jnp.float8_e8m0fnu)
by_numpy = {"zeros": jnp.zeros(1, scales.dtype)[0], "sum": jnp.sum(scales), "max": jnp.max(scales)}
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
by_lax = {
    function.__name__: jax.shard_map(
        lambda x, function=function: function(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()
    )(jnp.array([2, 2], jnp.float32).astype(scales.dtype))[0]
    for function in (jax.lax.psum, jax.lax.pmax)
}
print("float8_e8m0fnu:", *(f"{name} {value}" for name, value in (by_numpy | by_lax).items()))
assert all(np.isnan(float(value)) for value in by_numpy.values()), "the behaviour has changed"
assert [float(value) for value in by_lax.values()] == [4, 2], "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2 "$folder/venv/bin/python" "$folder/reduce.py"
