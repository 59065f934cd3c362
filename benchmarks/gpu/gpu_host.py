"""One host of a part of benchmarks/gpu/gpu.py: it uses one device, and rank 0 writes what was found.

    jax-passing run --hosts 2 benchmarks/gpu/gpu_host.py sums --platforms cuda,cpu --result result.json

Rank r takes the r-th platform. Hosts of platform cuda share a card, as far as there are more of them than cards.
"""

import argparse
import faulthandler
import json
import os
from pathlib import Path

import jax
from gpu_correctness import errors, growth, memory, sums, threads
from gpu_figures import call, copies, overlap, pipeline, profile
from gpu_program import Host

import jax_passing

PARTS = {
    part.__name__: part for part in (sums, errors, threads, growth, memory, call, copies, pipeline, overlap, profile)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--platforms", default="cpu", help="of each rank: cuda or cpu")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--tell-after-s", type=float, help="print then what all threads of Python do")
    arguments = parser.parse_args()
    if arguments.tell_after_s is not None:
        faulthandler.dump_traceback_later(arguments.tell_after_s)
    platforms = arguments.platforms.split(",")
    rank = int(os.environ.get("JAX_PASSING_RANK", "0"))
    # process_sum computes on the CPU everywhere.
    jax.config.update("jax_platforms", "cpu" if platforms[rank] == "cpu" else f"{platforms[rank]},cpu")
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
    host = Host(rank, len(platforms), mesh, platforms[rank] != "cpu", arguments.result.with_suffix(""))
    if arguments.part == "errors":  # its sessions are its own, as one of them fails
        result = errors(host)
    else:
        with jax_passing.init(axis_name="d"):
            result = PARTS[arguments.part](host)
    if rank == 0:
        arguments.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
