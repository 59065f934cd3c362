#!/bin/bash
# XLA's collectives on CPU over gloo meet by their order alone. If one process runs a program more than the others, whose
# sum has the shape of their next one, gloo adds up the two without a word, and all later sums are wrong as well: here
# process 0 sums a metric of ones before its second step, and process 1 takes that for a gradient of hundreds. That breaks
# JAX's rule that all processes run the same programs in the same order. A launch id, which JAX makes for each execution
# of the program's fingerprint and a count, could show it, and on TPU a launch id that differs is an error; but gloo
# doesn't look. use_for_jax does, so that such sums never meet and ProgramMismatchError says what each host called. Seen
# with jax and jaxlib 0.10.2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
cat >"$folder/program.py" <<'PROGRAM'
import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

rank, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))


def rows(value):
    return jax.make_array_from_callback(
        (2, 3), NamedSharding(mesh, P("d")), lambda _: np.full((1, 3), value, np.float32)
    )


def total(x):
    return float(np.asarray(jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, P()))(x).addressable_data(0))[0])


gradient, metric = rows(100), rows(1)
print(f"process {rank}: gradient {total(gradient)}", flush=True)
if rank == 0:
    square = jax.jit(lambda x: (x * x).sum(0), out_shardings=NamedSharding(mesh, P()))
    print(f"process 0: metric {float(np.asarray(square(metric).addressable_data(0))[0])}, which should be 2.0", flush=True)
    print(f"process 0: gradient {total(gradient)}", flush=True)
else:
    print(f"process 1: gradient {total(gradient)}, which should be 200.0", flush=True)
    total(rows(7))
PROGRAM
"$folder/venv/bin/python" -c 'import jax; print("jax", jax.__version__)'
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
for rank in 0 1; do
  JAX_PLATFORMS=cpu timeout 120 "$folder/venv/bin/python" "$folder/program.py" $rank $port >"$folder/out.$rank" \
    2>"$folder/err.$rank" &
done
wait
cat "$folder/out.0" "$folder/out.1"
grep -qx "process 0: metric 101.0, which should be 2.0" "$folder/out.0"
grep -qx "process 1: gradient 101.0, which should be 200.0" "$folder/out.1"
