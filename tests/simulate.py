"""Whole clusters on a virtual clock, each from a seed: python tests/simulate.py --seeds 1000

The control planes, and the cores of switches and hosts, are those that are shipped; tests/simulation has the rest. What
fails is printed with the command that replays it, and shrunk. `--build` is where CMake has built _simulation.
"""

import argparse
import gc
import os
import resource
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from simulation import plants, runner  # noqa: E402
from simulation.drawing import from_seed  # noqa: E402
from simulation.lives import life_from_seed  # noqa: E402
from simulation.plan import decode, encode  # noqa: E402
from simulation.shrink import shrink  # noqa: E402

FOUND_MAX = 20  # of them; no more seeds then
SHRUNK_MAX = 3
REPLAYED = 20  # seeds
GROWTH_MAX = 1.05  # of memory, from the first half of a life to the second: an hour differs from another by as much


def replay(plan, verbose: bool) -> None:
    """Raises what is wrong."""
    from simulation.cluster import Cluster

    cluster = Cluster(plan, is_traced=verbose)
    print(encode(plan), flush=True)
    try:
        cluster.run()
    finally:
        for moment, *what in cluster.world.trace:
            print(f"{moment:.6f}", *what)
        for session in cluster.sessions():
            print(session)


def replays_exactly(seed: int) -> bool:
    from simulation.cluster import Cluster

    traces = []
    for _ in range(2):
        cluster = Cluster(from_seed(seed), is_traced=True)
        cluster.run()
        traces.append(cluster.world.trace)
    return traces[0] == traces[1]


def ends(outcome: runner.Outcome) -> str:
    counts = sorted(outcome.counts.items())
    return ", ".join(f"{kind.removeprefix('end: ')} {count}" for kind, count in counts if kind.startswith("end: "))


def report(outcome: runner.Outcome, processes: int, shrinks: bool) -> None:
    counts, seconds = outcome.counts, outcome.seconds
    print(f"sessions that ended: {ends(outcome)}")
    print(f"{counts['sums']} sums right, {counts['sums that failed']} failed by name")
    print(f"{counts['forged']} packets of strangers and {counts['flipped']} with flipped bits")
    print(
        f"{outcome.seeds} seeds, {counts['packets']} packets and {counts['lines']} control messages in {seconds:.0f} s "
        f"({processes} processes): {outcome.seeds / seconds:.0f} seeds and {counts['packets'] / seconds:.0f} packets/s"
    )
    for seed in sorted(outcome.wrong)[: SHRUNK_MAX if shrinks else 0]:
        plan = shrink(from_seed(seed), lambda plan: bool(runner.what_is_wrong(plan)))
        print(f"seed {seed}, shrunk: {runner.what_is_wrong(plan)}")
        print(f"  replay: python tests/simulate.py --plan '{encode(plan)}'")


def tell(seed: int, wrong: str) -> None:
    print(f"FAILED: seed {seed}: {wrong}\n  replay: python tests/simulate.py --seed {seed}", flush=True)


def train(seeds: range, processes: int) -> bool:
    """Elastic trainings in storms; whether one of them failed."""
    from simulation import storms

    outcome = runner.run_all(seeds, processes, on_wrong=tell_of_training, stop_after=FOUND_MAX, attempt=storms.attempt)
    print(f"hosts of elastic trainings that ended: {ends(outcome)}")
    counts = f"{outcome.seeds} trainings, {outcome.counts['steps']} steps, {outcome.counts['lines']} control messages"
    print(f"{counts}, {len(outcome.wrong)} wrong, {outcome.seconds:.0f} s")
    return bool(outcome.wrong)


def live(seed: int, hours: int) -> bool:
    """Prints what became of each hour of one cluster's life; whether memory grew. Raises what is wrong."""
    from simulation.cluster import hours_of

    memory_kb = []
    for hour, cluster in enumerate(hours_of(life_from_seed(seed, hours)), 1):
        gc.collect()
        memory_kb.append(resident_kb())
        packets, sessions = cluster.world.packets, cluster.sessions()
        well = sum(session.kind == "Bye" for session in sessions)
        print(
            f"hour {hour}: {len(cluster.plan.faults)} faults, {len(sessions)} sessions, {well} of them to their end; "
            f"in all {packets.sums_right} sums right, {packets.sums_failed} failed by name, {packets.packets} packets, "
            f"{packets.forged} of strangers; nothing is left, {memory_kb[-1]} KB of memory",
            flush=True,
        )
    early, late = (max(some) for some in (memory_kb[: hours // 2], memory_kb[hours // 2 :]))
    print(f"memory: at most {early} KB in the first half, {late} KB in the second ({late / early - 1:+.1%})")
    return late > GROWTH_MAX * early


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def tell_of_training(seed: int, wrong: str) -> None:
    print(f"FAILED: elastic training {seed}: {wrong}\n  replay: python tests/simulate.py --elastic --seed {seed}")


def train_once(seed: int) -> tuple[str, dict]:
    from simulation import storms  # in a process that has its planted bug by now

    return storms.attempt(seed)


def find_plants(build: Path, seeds: int, processes: int) -> list[str]:
    """Tries seeds until each is found, and prints by which; returns those that aren't found."""
    missed = []
    in_clusters = [(name, plant, runner.attempt) for name, plant in plants.all_of(build).items()]
    in_trainings = [(name, plant, train_once) for name, plant in plants.IN_TRAININGS.items()]
    for name, plant, attempt in (*in_clusters, *in_trainings):
        outcome = runner.run_all(range(seeds), processes, plant, stop_after=1, attempt=attempt)
        first = min(outcome.wrong, default=None)
        how = "missed" if first is None else f"found by seed {first}: {outcome.wrong[first].splitlines()[0][:100]}"
        print(f"planted: {name}: {how}", flush=True)
        missed += [name] if first is None else []
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone, in this process")
    parser.add_argument("--elastic", action="store_true", help="trainings whose hosts meet again, in place of clusters")
    parser.add_argument("--plan", help="a plan as it was printed, in this process")
    parser.add_argument("--verbose", action="store_true", help="with --seed or --plan: all that was said")
    parser.add_argument("--plants", type=int, default=0, metavar="SEEDS", help="to find each planted bug with")
    parser.add_argument("--hours", type=int, default=0, help="of one cluster's life, with --seed; 12 at least")
    parser.add_argument("--port", action="store_true", help="how near sums come to what a port carries")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", type=Path, default=HERE.parent / "build/check/cmake")
    args = parser.parse_args()
    sys.path.append(str(args.build))
    if args.port:
        from simulation import port

        port.main()
        return 0
    if 0 < args.hours < 12:
        parser.error("memory is warm after half of the hours only if these are 12 at least")
    if args.hours:
        return live(args.seed or 0, args.hours)
    if args.elastic:
        seeds = range(args.first, args.first + args.seeds) if args.seed is None else range(args.seed, args.seed + 1)
        return train(seeds, args.processes)
    if args.seed is not None or args.plan is not None:
        replay(from_seed(args.seed) if args.plan is None else decode(args.plan), args.verbose)
        return 0
    failed = False
    if args.plants:
        missed = find_plants(args.build, args.plants, args.processes)
        failed |= bool(missed)
    if args.seeds:
        seeds = range(args.first, args.first + args.seeds)
        outcome = runner.run_all(seeds, args.processes, on_wrong=tell, stop_after=FOUND_MAX)
        report(outcome, args.processes, not args.no_shrink)
        unlike = [seed for seed in range(args.first, args.first + REPLAYED) if not replays_exactly(seed)]
        if unlike:
            print(f"FAILED: seeds {unlike} don't replay exactly")
        failed |= bool(outcome.wrong or unlike)
    return failed


if __name__ == "__main__":
    sys.exit(main())
