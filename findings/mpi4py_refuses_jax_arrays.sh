#!/usr/bin/env bash
# mpi4py 4.1.2 refuses the arrays of jax 0.10.0 on CPU as it finds their type by itself: KeyError "cannot map '=f' to MPI
# datatype". jaxlib's buffers say "=f" where numpy's say "f", both native float32. A program that moves from numpy to
# jax.numpy fails at its first Send or Allreduce, and so do mixed calls on the rank whose array is JAX's, while the others
# wait in theirs. With the type beside it, [x, MPI.FLOAT], or as numpy.asarray(x), which copies nothing, it goes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2 jax==0.10.0 jaxlib==0.10.0
cat >"$folder/sum.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

x = jnp.full(4, 2.0)
out = np.zeros(4, np.float32)
print("jax", jax.__version__, "formats", memoryview(x).format, memoryview(np.asarray(x)).format)
try:
    MPI.COMM_WORLD.Allreduce(x, out)
except KeyError as error:
    print("refused:", error)
else:
    raise SystemExit("mpi4py took the array")
for given in ([x, MPI.FLOAT], np.asarray(x)):
    out[:] = 0
    MPI.COMM_WORLD.Allreduce(given, out)
    assert (out == 2).all(), out
PYTHON
JAX_PLATFORMS=cpu timeout 120 "$folder/venv/bin/mpiexec" -n 1 "$folder/venv/bin/python" "$folder/sum.py"
