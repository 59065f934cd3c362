#!/bin/bash
# JAX's persistent compilation cache serves process 0 alone where several processes share CPU devices by jax.distributed
# (gloo): the others neither write to it nor find in it what process 0 has written, though all have one folder and
# compile the same program. So after a restart process 0 waits in its first collective for as long as the others compile.
# Our page of use_for_jax says so, and to set the deadlines longer than that. Seen with jax and jaxlib 0.10.2.
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

rank, port, cache = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_compilation_cache_dir", cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
x = jax.make_array_from_callback((2, 3), NamedSharding(mesh, P("d")), lambda _: np.ones((1, 3), np.float32))
jax.block_until_ready(jax.jit(lambda x: 2 * x.sum(0), out_shardings=NamedSharding(mesh, P()))(x))
count = {name: events.count(f"/jax/compilation_cache/{name}") for name in ("cache_misses", "cache_hits")}
print(f"process {rank}: {count['cache_misses']} written, {count['cache_hits']} found", flush=True)
PROGRAM
run() {
  local port
  port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
  for rank in 0 1; do
    JAX_PLATFORMS=cpu timeout 120 "$folder/venv/bin/python" "$folder/program.py" $rank $port "$folder/cache" \
      >"$folder/out.$rank" 2>"$folder/err.$rank" &
  done
  wait
  cat "$folder/out.0" "$folder/out.1"
}
"$folder/venv/bin/python" -c 'import jax; print("jax", jax.__version__)'
echo "first run:"; run
echo "second run:"; run | tee "$folder/second"
grep -qx "process 0: 0 written, 1 found" "$folder/second"
grep -qx "process 1: 0 written, 0 found" "$folder/second"
