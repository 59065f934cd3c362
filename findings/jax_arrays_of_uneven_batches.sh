#!/usr/bin/env bash
# jax.make_array_from_process_local_data infers the global shape from this process's rows times the number of processes,
# and nobody compares. If one process has 8 rows and another 4, as in the last batch, they hold one array of 16 rows and
# of 8, with no error; a mean is 4.625 on one and 9.25 on the other, where 12 rows have 6.17, and a gradient of a mean
# is the same on both but weighs the rows of the second process twice. With the global shape as an argument it raises.
# Seen with jax 0.10.2 and 0.12.0.1, over gloo. With use_for_jax the numbers are the same. jax_passing's page "Coming
# from lax.psum" says to pass the shape.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/rows.py" <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

rank = int(sys.argv[1])
jax.distributed.initialize(sys.argv[2], 2, rank)
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
sharded, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
rows = np.arange(8, dtype=np.float32) if rank == 0 else np.arange(10, 14, dtype=np.float32)

x = jax.make_array_from_process_local_data(sharded, rows)
mean = float(jax.jit(jnp.mean, out_shardings=whole)(x))
gradient = jax.jit(jax.grad(lambda weight, x: jnp.mean(weight * x)), out_shardings=whole)
slope = float(gradient(jax.device_put(np.float32(1), whole), x))
print(f"process {rank} has {len(rows)} rows: shape {x.shape}, mean {mean}, gradient {slope}", flush=True)
assert (x.shape, mean, slope) == (((16,), 4.625, 7.5) if rank == 0 else ((8,), 9.25, 7.5)), "the behaviour has changed"
try:
    jax.make_array_from_process_local_data(sharded, rows, (12,))
except ValueError as error:
    print(f"process {rank}, with global_shape=(12,): ValueError: {str(error)[:60]}...")
else:
    raise AssertionError("the behaviour has changed")
PYTHON
"$folder/venv/bin/python" -c 'import jax; print("jax", jax.__version__)'
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu
timeout 120 "$folder/venv/bin/python" "$folder/rows.py" 1 "127.0.0.1:$port" >"$folder/second" 2>&1 &
second=$!
timeout 120 "$folder/venv/bin/python" "$folder/rows.py" 0 "127.0.0.1:$port" 2>/dev/null
wait "$second"
grep "^process" "$folder/second"
