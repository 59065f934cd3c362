#!/usr/bin/env bash
# Ctrl-C while JAX compiles ends the wait for the compiler with KeyboardInterrupt, but not the compiler: its threads run
# on while Python takes XLA down, and the process mostly dies of SIGSEGV or SIGABRT, after it has printed the traceback.
# A program that catches KeyboardInterrupt and goes on isn't hurt. Seen with jax 0.10.0 and 0.10.2 on CPU; later
# ones (PASSING_JAX=">=0.11", Python 3.12) end by SIGINT. jax_passing's session ends before: the other hosts hear of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
version=${PASSING_JAX:-==0.10.2}
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "jax$version" "jaxlib$version"
cat >"$folder/compiles.py" <<'PYTHON'
import jax
import jax.numpy as jnp


def long(x):
    for step in range(6000):
        x = jnp.sin(x) * step + jnp.cos(x * step)
    return x


lowered = jax.jit(long).lower(jnp.ones(4))
print("compiles", flush=True)
lowered.compile()
print("compiled", flush=True)
PYTHON
cat >"$folder/interrupts.py" <<'PYTHON'
import signal
import subprocess
import sys
import time
from importlib.metadata import version

print("jax", version("jax"), "Python", sys.version.split()[0])
codes = []
for _ in range(4):
    process = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "compiles\n"
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=120)
    assert not shown, "it has compiled before the signal came"
    assert "KeyboardInterrupt" in errors
    codes.append(process.returncode)
print("exit codes", codes)
assert {-signal.SIGSEGV, -signal.SIGABRT} & set(codes), "the behaviour has changed"
PYTHON
JAX_PLATFORMS=cpu timeout 300 "$folder/venv/bin/python" "$folder/interrupts.py" "$folder/compiles.py"
