#!/usr/bin/env bash
# jax.experimental.multihost_utils cuts 64-bit values of numpy and Python down to 32 bits, unless jax_enable_x64 is set.
# So assert_equal raises for values that are equal on all processes (0.1, 2**40, and NaN of any width), and its message
# shows two equal numbers; and broadcast_one_to_all turns 2**40 + 3, as a count of tokens may be, into 3 without a word.
# jax.device_put compares so, too, when it puts an array of numpy onto a mesh that spans the processes: parameters with a
# NaN that all processes hold alike can't be put there. Seen with jax 0.10.2, two processes over gloo.
# jax_passing.process_sum takes 64-bit values as they are, and `overlap` compares the bits of parameters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/values.py" <<'PYTHON'
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

RANK = int(sys.argv[1])
jax.distributed.initialize(sys.argv[2], 2, RANK)


def says_unequal(value):
    """All processes give the same value."""
    try:
        multihost_utils.assert_equal(value)
    except AssertionError as error:
        print(f"assert_equal({value!r}) on all processes: AssertionError{error}")
        return True
    print(f"assert_equal({value!r}) on all processes: passes")
    return False


print("jax", jax.__version__)
found = [says_unequal(value) for value in (0.1, 2**40, np.float32("nan"), np.float32(0.1), 0.5)]
assert found == [True, True, True, False, False], "the behaviour has changed"
tokens = multihost_utils.broadcast_one_to_all(np.array(2**40 + 3))
print(f"broadcast_one_to_all({2**40 + 3}): {tokens}")
assert int(tokens) == 3, "the behaviour has changed"
over_both = jax.sharding.NamedSharding(jax.make_mesh((2,), ("d",)), jax.sharding.PartitionSpec("d"))
jax.device_put(np.array([1.0, 2.0], np.float32), over_both)
try:
    jax.device_put(np.array([1.0, np.nan], np.float32), over_both)
except AssertionError as error:
    print(f"device_put of the same array with a NaN on all processes: AssertionError: {str(error)[:80]}...")
else:
    raise AssertionError("the behaviour has changed")
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu
timeout 120 "$folder/venv/bin/python" "$folder/values.py" 1 "127.0.0.1:$port" >"$folder/second" 2>&1 &
second=$!
timeout 120 "$folder/venv/bin/python" "$folder/values.py" 0 "127.0.0.1:$port" 2>/dev/null
wait "$second"
