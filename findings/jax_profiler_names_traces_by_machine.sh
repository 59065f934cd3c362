#!/usr/bin/env bash
# jax.profiler writes a trace to DIRECTORY/plugins/profile/SECOND/HOSTNAME.xplane.pb. So processes of one machine that
# trace the same second, as those do that trace the same steps, write the same file, and one process's trace is all that
# is left, without a warning. Where a second goes by between them, each has a folder of its own, and they can't be
# looked at together. Seen with jax 0.10.2 and 0.12.0.1. jax_passing's flight records and traces have a file for each
# process; its page on watching says to give jax.profiler a directory for each, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/trace.py" <<'PYTHON'
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

rank, folder = int(sys.argv[1]), Path(sys.argv[3])
jax.distributed.initialize(sys.argv[2], 2, rank)
found = []
for attempt in range(4):
    traces = folder / f"attempt {attempt}"
    multihost_utils.sync_global_devices("start")
    time.sleep(1.2 - time.time() % 1)
    jax.profiler.start_trace(traces)
    with jax.profiler.TraceAnnotation(f"work of process {rank}"):
        jnp.ones(100).sum().block_until_ready()
    jax.profiler.stop_trace()
    multihost_utils.sync_global_devices("stop")
    if len(list(traces.glob("plugins/profile/*"))) == 1:  # the same second
        files = [path.read_bytes() for path in traces.rglob("*.xplane.pb")]
        found.append([sum(f"work of process {process}".encode() in file for file in files) for process in (0, 1)])
if rank == 0:
    print("jax", jax.__version__)
    for first, second in found:
        print(f"traces of the same second: {first} of process 0, {second} of process 1")
    assert found and all(sum(counts) == 1 for counts in found), "the behaviour has changed"
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu
timeout 120 "$folder/venv/bin/python" "$folder/trace.py" 1 "127.0.0.1:$port" "$folder/traces" >/dev/null 2>&1 &
second=$!
timeout 120 "$folder/venv/bin/python" "$folder/trace.py" 0 "127.0.0.1:$port" "$folder/traces" 2>"$folder/errors" ||
  { grep -v Gloo "$folder/errors" | tail -3; exit 1; }
wait "$second"
