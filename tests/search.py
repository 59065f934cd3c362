"""Randomised search: programs drawn from a seed on 2 to 4 hosts, each right or an error by name, never wrong.

    python tests/search.py --programs 300 --seed 1

Hosts live on from program to program, and join anew after each error. A program that ends otherwise than it may is
printed with its source and the command that replays it. tests/support/jax/search_programs.py says what is drawn.
"""

import argparse
import collections
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402

from support.jax import lockstep  # noqa: E402
from support.jax.search_programs import Program, draw  # noqa: E402
from support.jobs.cluster import PROGRAMS, Switch, host_settings  # noqa: E402

LIMIT_S = 90.0  # for an answer; what hangs has met the session's deadline long before
FAST_COMPILER = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
DEVICES = {2: 2, 3: 2, 4: 1}  # of each host, by the number of hosts


class World:
    """A switch and its hosts."""

    def __init__(self, hosts: int) -> None:
        self.hosts, self.devices = hosts, DEVICES[hosts]
        self.switch = Switch()
        settings = [host_settings(self.switch.address, "search", rank, hosts, self.devices) for rank in range(hosts)]
        # Sets and dicts are in another order on each host.
        flags = f"{os.environ.get('XLA_FLAGS', '')} {FAST_COMPILER}"
        settings = [own | {"XLA_FLAGS": flags} for own in settings]
        self.processes = [lockstep.Follower(PROGRAMS / "transforms/search_host.py", [], own) for own in settings]
        self.init()

    def init(self) -> None:
        lockstep.ask(self.processes, {"do": "init"}, LIMIT_S)

    def run(self, program: Program) -> list[dict[str, Any]]:
        question = {"do": "run", "seed": program.seed}
        answers = lockstep.ask(self.processes, question, LIMIT_S)
        if any("error" in answer or answer["failed"] for answer in answers):
            self.init()
        return answers

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
        self.switch.stop()


def outcome(program: Program, rank: int, answer: dict[str, Any]) -> str:
    """ "right", the name of an error, or what is wrong."""
    if "error" in answer:
        return str(answer["error"])
    number = 0
    for execution in range(program.executions):
        for mesh, devices in enumerate(program.devices_that_run):
            own = slice(rank * len(devices), (rank + 1) * len(devices))
            rows = program.expected(execution, mesh)
            for variable, got, expected in zip(program.results, answer["value"][number], rows, strict=True):
                if not np.array_equal(np.array(got, variable.dtype), expected[own]):
                    where = f"execution {execution}, mesh {mesh}, {variable.name}"
                    return f"WRONG: {where} is {got}, not {expected[own].tolist()}"
            number += 1
    return "right"


def search(worlds: list[int], seeds: list[int]) -> tuple[int, "collections.Counter[str]"]:
    """Runs the programs; (how many failed, how the others ended)."""
    failures, ends = 0, collections.Counter[str]()
    for hosts in sorted({*worlds}):
        world = World(hosts)
        try:
            for seed in (seed for seed, its_hosts in zip(seeds, worlds, strict=True) if its_hosts == hosts):
                program = draw(seed, hosts, world.devices)
                try:
                    answers = world.run(program)
                    found = [outcome(program, rank, answer) for rank, answer in enumerate(answers)]
                except AssertionError as error:
                    answers, found = [], [f"HANG: {error}"]
                    world.stop()
                    world = World(hosts)
                if {*found} <= program.allowed:
                    ends[max(found)] += 1
                    continue
                failures += 1
                print(f"--- seed {seed}: {program.description}")
                for rank, each in enumerate(found):
                    text = answers[rank].get("text", "") if answers else ""
                    print(f"rank {rank}: {each} {text[-1500:]}")
                print(f"replay: python tests/search.py --programs 1 --seed {seed} --hosts {hosts}", flush=True)
        finally:
            world.stop()
    return failures, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, help="of the first program; the others follow (default: any)")
    parser.add_argument("--hosts", default="2,3,4", help="numbers of hosts, drawn with equal chances")
    arguments = parser.parse_args()
    first = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    seeds = list(range(first, first + arguments.programs))
    counts = [int(text) for text in arguments.hosts.split(",")]
    worlds = [random.Random(seed).choice(counts) for seed in seeds]
    print(f"seeds {first} to {seeds[-1]}, hosts {arguments.hosts}", flush=True)
    began = time.monotonic()
    failures, ends = search(worlds, seeds)
    counted = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    print(
        f"{len(seeds)} programs in {time.monotonic() - began:.0f} s: {counted or 'none as allowed'}; {failures} failed"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
