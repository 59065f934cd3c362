#!/usr/bin/env bash
# jnp.max of an array that is sharded over two processes of CPU devices gives 1.0 although one element is NaN, if the NaN
# is on the second process; on the first one it gives NaN. So do jnp.min and lax.pmax. A check for "any NaN in the
# gradients?" by a maximum passes so. jnp.sum keeps the NaN. Seen with jax 0.10.2 over gloo. jax_passing.pmax and pmin
# compare integers that are in the order of the elements, with NaN beyond all numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/largest.py" <<'PYTHON'
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[1]))
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("d"), out_specs=P())
def pmax(x):
    return jax.lax.pmax(jnp.max(x), "d")


print("jax", jax.__version__)
for position in (0, 3):
    values = np.ones(4, np.float32)
    values[position] = np.nan
    x = jax.make_array_from_callback((4,), NamedSharding(mesh, P("d")), lambda index: values[index])
    found = {"jnp.max": jnp.max(x), "jnp.min": jnp.min(x), "lax.pmax": pmax(x), "jnp.sum": jnp.sum(x)}
    found = {name: float(value) for name, value in found.items()}
    print(f"NaN on process {position // 2}: {found}")
    lost = [name for name, value in found.items() if not math.isnan(value)]
    assert lost == ([] if position == 0 else ["jnp.max", "jnp.min", "lax.pmax"]), "the behaviour has changed"
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu
timeout 120 "$folder/venv/bin/python" "$folder/largest.py" 1 "127.0.0.1:$port" >"$folder/second" 2>&1 &
second=$!
timeout 120 "$folder/venv/bin/python" "$folder/largest.py" 0 "127.0.0.1:$port" 2>/dev/null
wait "$second"
