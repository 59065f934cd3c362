#!/usr/bin/env bash
# flax.serialization.to_bytes (and flax.training.checkpoints, which calls it) holds Python's lock (GIL) while msgpack
# packs an array: with 256 MiB another thread of the process stands still for 0.6 to 4 s, and in pickle.dumps for 0.3 s
# or more. numpy.save, safetensors' save_file, h5py and orbax let it run all the time, for the same bytes. So whoever
# says from a thread of Python that its process lives is taken for dead while a checkpoint is written. Seen with flax
# 0.12.8 and msgpack 1.2.4 (safetensors 0.8.0, numpy 2.4.6). A thread without Python speaks for jax_passing's hosts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 \
  msgpack==1.2.4 safetensors==0.8.0 numpy==2.4.6
cat >"$folder/save.py" <<'PYTHON'
import pickle
import sys
import threading
import time

import flax
import msgpack
import numpy as np
import safetensors.numpy
from flax.serialization import to_bytes

folder = sys.argv[1]
array = np.random.default_rng(0).random((64, 1024, 1024), dtype=np.float32)
longest_s = 0.0


def beat():
    global longest_s
    last_s = time.monotonic()
    while True:
        time.sleep(0.01)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s


threading.Thread(target=beat, daemon=True).start()


def pause_s(save):
    """The longest time for which the other thread stands still, in the best of three trials."""
    global longest_s
    found = []
    for _ in range(3):
        time.sleep(0.05)
        longest_s = 0.0
        save()
        time.sleep(0.05)
        found.append(longest_s)
    return min(found)


print("flax", flax.__version__, "msgpack", msgpack.version)
held = {
    "flax.serialization.to_bytes": pause_s(lambda: to_bytes({"w": array})),
    "pickle.dumps": pause_s(lambda: pickle.dumps(array)),
}
free = {
    "numpy.save": pause_s(lambda: np.save(f"{folder}/array.npy", array)),
    "safetensors.numpy.save_file": pause_s(lambda: safetensors.numpy.save_file({"w": array}, f"{folder}/array")),
}
for name, seconds in (held | free).items():
    print(f"{name} of 256 MiB: another thread stands still for {seconds:.3f} s")
assert min(held.values()) > 2 * max(free.values()), "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/save.py" "$folder"
