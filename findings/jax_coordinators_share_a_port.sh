#!/usr/bin/env bash
# The coordinator of jax.distributed takes its port with SO_REUSEPORT, as gRPC does by default. So a second coordinator
# on the same machine binds the same port without an error, and the kernel shares the connections between the two: where
# two runs name one port, processes of both may get to one coordinator. Seen with jax 0.10.2. This script shows only that
# the port may be bound again. `jax-passing run` keeps a free port for the coordinator of each run.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/bind.py" <<'PYTHON'
import socket

import jax


def bind(port, reuse):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse)
        other.bind(("127.0.0.1", port))
        other.listen()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
print(f"jax {jax.__version__}: a coordinator of {jax.process_count()} process listens at port {port}")
try:
    bind(port, False)
except OSError as error:
    print(f"a socket without SO_REUSEPORT: {error.strerror}")
else:
    raise SystemExit("the behaviour has changed: nobody listens there")
bind(port, True)
print("a socket with SO_REUSEPORT, as a second coordinator has one: it listens at the same port, too")
jax.distributed.shutdown()
PYTHON
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/bind.py"
