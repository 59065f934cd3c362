#!/bin/bash
# XLA on CPU merges all all-reduces of a program that don't need each other's results into one, of up to 256 arrays each:
# 600 gradients are summed by three calls, and none of these begins before the last of its gradients is there. So a data
# parallel step has no overlap of communication and computation on CPU, over gloo and MPI alike. No flag of
# jax 0.10.2 turns that off. jax_passing.psum and overlap are calls of their own, which XLA leaves apart; the page of
# use_for_jax says that XLA's own sums are merged. Seen with jax and jaxlib 0.10.2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
cat >"$folder/program.py" <<'PROGRAM'
import re

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

print("jax", jax.__version__)
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
found = {}
for count in (3, 256, 257, 600):
    def sums(arrays):
        return [jax.lax.psum(x, "d") for x in arrays]

    step = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=P("d"), out_specs=P()))
    arrays = [jax.device_put(jnp.full((2, 8), float(i)), NamedSharding(mesh, P("d"))) for i in range(count)]
    text = step.lower(arrays).compile().as_text()
    found[count] = len(re.findall(r"= .*all-reduce\(", text))
    print(f"{count} independent psums became {found[count]} all-reduces")
assert found == {3: 1, 256: 1, 257: 2, 600: 3}, "the behaviour has changed"
PROGRAM
JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2 "$folder/venv/bin/python" "$folder/program.py"
