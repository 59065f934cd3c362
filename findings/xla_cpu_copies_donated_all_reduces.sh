#!/usr/bin/env bash
# To donate the argument of a jitted jax.lax.psum saves no memory on CPUs, and costs a copy: the result has to take the
# argument's buffer, but XLA:CPU gives each all-reduce memory of its own, and copies from there afterwards. Without the
# donation the all-reduce writes the result itself. So gradients that one program computes and another one sums are better
# not donated to the second. Where the operand is computed in the same program, a donation saves memory as it should.
# Seen with jax 0.10.2 on two CPU devices of one process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/donated.py" <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2,), ("d",))
BYTES = 4 << 20  # of a device
rows = jax.ShapeDtypeStruct((2 * BYTES // 4,), jnp.float32, sharding=NamedSharding(mesh, P("d")))


def told(name, body, donated, copies, bytes_besides):
    """Compares what XLA compiles with what is expected."""
    summed = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    compiled = jax.jit(summed, donate_argnums=donated).lower(rows).compile()
    memory = compiled.memory_analysis()
    besides = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    found = compiled.as_text().count(" copy("), round(besides / BYTES)
    print(f"{name}, donated {donated}: copies {found[0]}, memory beside the argument {found[1]} times its size")
    assert found == (copies, bytes_besides), "the behaviour has changed"


print("jax", jax.__version__)
told("psum", lambda x: jax.lax.psum(x, "d"), (), 0, 1)
told("psum", lambda x: jax.lax.psum(x, "d"), 0, 1, 1)
told("psum of a product", lambda x: jax.lax.psum(2 * x, "d"), (), 0, 2)
told("psum of a product", lambda x: jax.lax.psum(2 * x, "d"), 0, 0, 1)
PYTHON
JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2 timeout 120 "$folder/venv/bin/python" "$folder/donated.py"
