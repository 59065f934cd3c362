#!/usr/bin/env bash
# jax.distributed.initialize takes SIGTERM for a notice of preemption: it sets a handler in C++, in all processes, which
# lets the process run on. So `timeout`, `scancel`, a deleted pod and launchers that stop the others after a failure end
# such a process only by SIGKILL, after their grace period. A handler that the program has set before, as to write a
# checkpoint, is lost without a word, and signal.getsignal still shows it; one that is set afterwards works, but then
# multihost_utils.reached_preemption_sync_point never says True. JAX_ENABLE_PREEMPTION_SERVICE=0 leaves SIGTERM alone.
# Seen with jax 0.10.2 and 0.12.0.1. `jax-passing run` sends SIGKILL 5 s after SIGTERM; jax_passing.init sets no handler
# for SIGTERM, and its page on clusters names the setting.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/terminate.py" <<'PYTHON'
import os
import signal
import socket
import sys
import time

import jax
from jax.experimental import multihost_utils

when, handled = sys.argv[1], []


def save(number, frame):
    handled.append(number)


if when == "before":
    signal.signal(signal.SIGTERM, save)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
if when == "after":
    signal.signal(signal.SIGTERM, save)
assert (signal.getsignal(signal.SIGTERM) == save) == (when != "never")
os.kill(os.getpid(), signal.SIGTERM)
for _ in range(20):
    time.sleep(0.1)
notices = [multihost_utils.reached_preemption_sync_point(step) for step in range(3)]
print(f"lives 2 s later; handler called: {bool(handled)}; sync point reached: {any(notices)}")
PYTHON
"$folder/venv/bin/python" -c 'import jax; print("jax", jax.__version__)'
try() {
  local code=0
  JAX_PLATFORMS=cpu timeout 120 "$folder/venv/bin/python" "$folder/terminate.py" "$1" >"$folder/out" 2>&1 || code=$?
  echo "$2: $(grep "2 s later" "$folder/out" || echo "exit code $code")"
}
export JAX_ENABLE_PREEMPTION_SERVICE=1
{
  try never "no handler"
  try before "a handler set before"
  try after "a handler set after"
  JAX_ENABLE_PREEMPTION_SERVICE=0 try never "without the service"
} | tee "$folder/seen"
diff "$folder/seen" - <<'SEEN' || { echo "the behaviour has changed"; exit 1; }
no handler: lives 2 s later; handler called: False; sync point reached: True
a handler set before: lives 2 s later; handler called: False; sync point reached: True
a handler set after: lives 2 s later; handler called: True; sync point reached: False
without the service: exit code 143
SEEN
