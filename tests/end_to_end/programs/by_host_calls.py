"""Runs another program of this folder on hosts that take the way of TPU hosts: by_host_calls.py RANKS PROGRAM ARGS...

RANKS are those that do, "0,2"; the others sum as CPU hosts do.
"""

import os
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))

ranks, program = sys.argv[1:3]
sys.argv = sys.argv[2:]
if os.environ["JAX_PASSING_RANK"] in ranks.split(","):
    # XLA's threads for CPU devices: as many as devices block in calls, and as many at the limit of executions in
    # flight. With as many threads as devices, JAX's own collectives wait for each other for ever, too.
    os.environ["NPROC"] = str(max(os.cpu_count() or 1, 2 * int(os.environ["JAX_NUM_CPU_DEVICES"])))

    from support.jax.host_calls_on_cpu import host_calls_on_cpu

    with host_calls_on_cpu():
        runpy.run_path(str(FOLDER / program), run_name="__main__")
else:
    runpy.run_path(str(FOLDER / program), run_name="__main__")
