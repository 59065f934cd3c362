#!/usr/bin/env bash
# On CPUs, XLA takes float32 denormals for zero wherever it computes: 1e-40 > 0 is false. It computes where a program only
# moves or selects values, too: lax.pmax returns 0 for 1e-40, unless the axis has one device, and so does a sum of one
# process's values and the others' zeros. multihost_utils.broadcast_one_to_all is such a sum: 1e-40 of an optimizer's
# state arrives as 0, and -0.0 as +0.0, while process_allgather, lax.all_gather and lax.ppermute keep every bit. Seen with
# jax 0.10.2, two processes over gloo. jax_passing.broadcast, all_gather and pmax keep these bits, and psum denormals.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/bits.py" <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[1]))
VALUES = np.array([1e-40, -0.0, 1.5], np.float32)


def in_jit(function, devices):
    mesh = jax.sharding.Mesh(devices, ("d",))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return jax.jit(mapped)(VALUES)


def told(name, got, kept):
    got = np.asarray(got)
    print(f"{name}: {got}")
    assert (got.view(np.uint32).tolist() == VALUES.view(np.uint32).tolist()) == kept, "the behaviour has changed"


print("jax", jax.__version__)
both, own = jax.local_devices(), jax.local_devices()[:1]
told("jnp.where(x > 0, x, -0.0)", in_jit(lambda x: jnp.where(x > 0, x, -0.0), both), False)
told("lax.pmax", in_jit(lambda x: jax.lax.pmax(x, "d"), both), False)
told("lax.pmax over one device", in_jit(lambda x: jax.lax.pmax(x, "d"), own), True)
told("lax.all_gather", in_jit(lambda x: jax.lax.all_gather(x, "d")[1], both), True)
told("lax.ppermute", in_jit(lambda x: jax.lax.ppermute(x, "d", [(0, 1), (1, 0)]), both), True)
told("process_allgather", multihost_utils.process_allgather(VALUES)[0], True)
told("broadcast_one_to_all", multihost_utils.broadcast_one_to_all(VALUES), False)
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2
timeout 120 "$folder/venv/bin/python" "$folder/bits.py" 1 "127.0.0.1:$port" >"$folder/second" 2>&1 &
second=$!
timeout 120 "$folder/venv/bin/python" "$folder/bits.py" 0 "127.0.0.1:$port" 2>/dev/null
wait "$second"
