#!/usr/bin/env bash
# BatchNorm of flax with axis_name and a mask takes the mean of the devices' means, as if all had as many valid rows.
# With four valid rows on one device and one on the other it normalises by a mean of 51.25 instead of 22; and a device
# that has padding alone makes the mean and variance of all devices NaN, and so the running statistics. That is how the
# last batch of an epoch looks on several hosts. Both linen and nnx do so. Under jit, on the same sharded batch without
# axis_name, they are right. Seen with flax 0.12.8 and 0.12.12 (flax's issue 2417 is about devices with other numbers of
# rows). jax_passing's page "Collectives" says so where it names BatchNorm.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 flax==0.12.8
cat >"$folder/masks.py" <<'PYTHON'
import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

MESH = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
SHARDED = NamedSharding(MESH, P("d"))
rows = jnp.array([1.0, 2, 3, 4, 100, 0, 0, 0])[:, None]


def statistics(x, mask, axis_name=None):
    norm = nnx.BatchNorm(1, momentum=0, use_fast_variance=False, axis_name=axis_name, rngs=nnx.Rngs(0))
    norm(x, mask=mask)
    return jnp.stack([norm.mean[0], norm.var[0]])


def over_devices(x, mask):
    return statistics(x, mask, "d")


print("flax", flax.__version__, "on", len(jax.devices()), "devices")
for valid, right, found in ((5, [22, 1522], [51.25, 2377.1875]), (4, [2.5, 1.25], [np.nan, np.nan])):
    mask = (jnp.arange(8) < valid)[:, None]
    by_jit = jax.jit(statistics, in_shardings=(SHARDED, SHARDED))(rows, mask)
    named = jax.jit(jax.shard_map(over_devices, mesh=MESH, in_specs=P("d"), out_specs=P(), check_vma=False))(rows, mask)
    print(f"{valid} valid rows of 8: mean and variance {by_jit} under jit, {named} with axis_name")
    np.testing.assert_allclose(by_jit, right, rtol=1e-5)
    np.testing.assert_allclose(named, found, rtol=1e-5, err_msg="the behaviour has changed")
PYTHON
JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2 "$folder/venv/bin/python" "$folder/masks.py"
