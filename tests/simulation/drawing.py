"""Draws the plan of a cluster from a seed."""

from random import Random

from msgspec.structs import replace

from jax_passing.protocol.packet import LANES_AT_MTU_1500, LANES_MAX
from simulation.intrusion import check_sums, leave_open, tag_packets
from simulation.plan import LIFE_S, Fault, Host, Job, Link, Plan, Site, Switch

RTO_US = 10_000  # the first one


def from_seed(seed: int) -> Plan:
    random = Random(seed)
    is_gentle = random.random() < 0.3
    up, down = (_link(random) for _ in range(2))
    switches = _switches(random)
    jobs, hosts = [], []
    for index in range(random.choice([1, 1, 2, 3])):
        job = draw_job(random, f"job {index}")
        jobs.append(job)
        hosts += draw_hosts(random, job, switches, len(hosts), is_gentle)
    machines = [f"host {one.number}" for one in hosts]
    kinds = ["pause", "partition"] if is_gentle else ["crash"]
    if not is_gentle and random.random() < 0.5:  # else hosts alone fail, of which more is expected
        machines += [f"switch {one.number}" for one in switches] * 2
        kinds += ["crash", "pause", "partition", "partition", "device"]
    runs_s = max(host.starts_s for host in hosts)
    faults = tuple(
        draw_fault(random, machines, kinds, is_gentle, runs_s) for _ in range(random.choice([0, 1, 1, 2, 3]))
    )
    if is_gentle and random.random() < 0.25:
        at_s = round(runs_s + random.uniform(0, random.choice([0.5, LIFE_S])), 4)
        faults += (Fault(kind="suspend", at_s=at_s, machine="all", for_s=10.0),)
    if not is_gentle and random.random() < 0.1:
        hosts, faults = _one_dies_while_it_waits(random, hosts)
    rare = not is_gentle and random.random() < 0.1
    plan = Plan(
        seed=seed,
        up=up,
        down=down,
        switches=tuple(switches),
        jobs=tuple(jobs),
        hosts=tuple(hosts),
        faults=faults,
        stuck=random.choice([0.002, 0.02]) if rare else 0.0,
        refuses=random.choice([0.0, 0.2]) if rare else 0.0,
        first_position=random.choice([0, 2**32 - 1 - random.randrange(50)]),
    )
    plan = random.choice([leave_open, leave_open, leave_open, tag_packets, tag_packets, check_sums])(random, plan)
    return _lengthen_packets(random, plan) if random.random() < 0.3 else plan


def _lengthen_packets(random: Random, plan: Plan) -> Plan:
    """Some switches take longer packets, and so do some paths, or seem to."""

    def with_path(machine):
        fit = random.choice([LANES_AT_MTU_1500, 1000, LANES_MAX, LANES_MAX, 2 * LANES_MAX])
        return replace(machine, lanes_that_fit=fit, passes_what_fits=random.random() < 0.85)

    switches = [with_path(one) for one in plan.switches]
    for index, one in enumerate(switches):
        if not one.whole_chunks and random.random() < 0.9:  # as many slots of longer chunks take more room
            lanes, more = random.choice([721, 1100, LANES_MAX]), {"slot_total": 8 * one.slot_total}
            switches[index] = replace(one, lanes_per_chunk=lanes, slots_per_job=8 * one.slots_per_job, **more)
    return replace(plan, switches=tuple(switches), hosts=tuple(map(with_path, plan.hosts)))


def _link(random: Random) -> Link:
    return Link(
        loss=random.choice([0.0, 0.0, 0.01, 0.05, 0.2]),
        duplicate=random.choice([0.0, 0.05, 0.2]),
        reorder=random.choice([0.0, 0.1, 0.5]),
        reorder_us=random.choice([10, 1000, RTO_US, 5 * RTO_US]),
        delay_us=random.choice([5, 20, 200]),
        flip=random.choice([0.0, 0.0, 0.02]),
        stale=random.choice([0.0, 0.02, 0.3]),
        stale_us=random.choice([50_000, 500_000, 5_000_000]),
    )


def _switches(random: Random) -> list[Switch]:
    # Trees, mostly one. All have room for three jobs of two shards: one that is refused for want of slots shows little.
    lanes, slots = random.choice([64, 63, 256, 360]), random.choice([4, 4, 8, 16, 64])
    whole = random.random() < 0.2
    switches: list[Switch] = []
    for number in range(random.choice([1, 1, 2, 3, 4, 5])):
        parent = random.choice([None, *range(number), *range(number)]) if number else None
        switches.append(
            Switch(
                number=number,
                parent=parent,
                slots_per_job=slots if whole else random.choice([slots, slots, 2 * slots]),
                slot_total=16 * slots,
                lanes_per_chunk=lanes if whole else random.choice([lanes, lanes, 64]),
                whole_chunks=whole,
                takes_bare=random.random() < 0.8,
                multicast=random.random() < 0.6,
                has_one_port=number % 2 == 0,
            )
        )
    return [replace(one, threads=_threads(one)) for one in switches]


def _threads(switch: Switch) -> int:
    """Programs for devices, which take whole chunks, have one. Of others, mostly all of a tree have as many."""
    return 1 if switch.whole_chunks else {8: 2, 16: 4}.get(switch.slots_per_job, 1)


def draw_job(random: Random, name: str) -> Job:
    world_size = random.choice([1, 2, 2, 3, 4, 6])
    sites = tuple(_site(random, world_size) for _ in range(random.randint(1, 4)))
    programs = tuple(
        tuple(random.randrange(len(sites)) for _ in range(random.randint(1, 4))) for _ in range(random.choice([1, 2]))
    )
    return Job(
        name=name,
        world_size=world_size,
        sites=sites,
        programs=programs,
        executions=random.choice([1, 4, 8]),
        ahead=random.choice([1, 1, 3]),
        spread_us=random.choice([1, 200, 3000]),
        thinks_s=random.choice([0.0, 0.05, 0.5]),
        is_confidential=sum(sum(site.leaves) for site in sites) % 4 == 0,
    )


_WIRES = ("full", "full", "int16", "int8", "int4")  # the last one takes as many hosts as a job has


def _site(random: Random, world_size: int) -> Site:
    dtype = random.choice(["float32", "float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"])
    leaves = tuple(1 + random.randrange(random.choice([3, 100, 1000])) for _ in range(random.choice([1, 1, 2, 4])))
    maxima = dtype == "int32" and random.random() < 0.5
    moves = "all" if maxima else random.choice(["all", "all", "gather", "scatter"])
    if moves != "all":
        leaves = tuple(elements * world_size for elements in leaves)
    return Site(
        dtype=dtype,
        leaves=leaves,
        device_count=random.choice([1, 1, 2]),
        maxima=maxima,
        moves=moves,
        early=moves != "all" and leaves[0] % 3 > 0,
        wire=_WIRES[sum(leaves) % len(_WIRES)] if dtype in ("float32", "float16", "bfloat16") else "full",
    )


def draw_hosts(random: Random, job: Job, switches: list[Switch], first: int, is_gentle: bool) -> list[Host]:
    groups = _groups(random, switches)
    sessions = random.choice([1, 2, 3])
    hosts = []
    for rank in range(job.world_size):
        does = "" if is_gentle or random.random() > 0.06 else random.choice(["fails", "garbage", "leaves", "skips"])
        if not is_gentle and random.random() < 0.02:
            does = "miscounts"
        hosts.append(
            Host(
                number=first + rank,
                job=job.name,
                rank=rank,
                switches=random.choice(groups),
                starts_s=round(random.uniform(0, random.choice([0.01, 0.5, LIFE_S / 2, LIFE_S])), 4),
                sessions=sessions,
                does=does,
            )
        )
    if not is_gentle and random.random() < 0.15:  # somebody else takes it for a rank of the job
        twin = random.choice(hosts)
        starts_s = round(random.uniform(0, LIFE_S), 4)
        twin = replace(twin, number=first + len(hosts), starts_s=starts_s, does="intrudes")
        hosts.append(twin)
    return hosts


def _one_dies_while_it_waits(random: Random, hosts: list[Host]) -> tuple[list[Host], tuple[Fault, ...]]:
    """Its machine is never seen again, and another rank of the job comes after a lease and before a join deadline."""
    dies = random.choice(hosts)
    late = random.choice([host for host in hosts if host.job == dies.job])
    starts_s = {late.number: 3.3, dies.number: 0.0}
    hosts = [replace(host, starts_s=starts_s.get(host.number, host.starts_s)) for host in hosts]
    return hosts, (Fault(kind="crash", at_s=0.3, machine=f"host {dies.number}", silent=True),)


def _groups(random: Random, switches: list[Switch]) -> list[tuple[int, ...]]:
    """Groups the hosts of a job: each lists a switch for each shard, and those at one switch list the same."""

    def root_of(number: int) -> int:
        parent = switches[number].parent
        return number if parent is None else root_of(parent)

    shards = random.choice([1, 1, 1, 2]) if len(switches) > 1 else 1
    numbers = list(range(len(switches)))
    random.shuffle(numbers)
    groups = [tuple(numbers[:shards])]
    roots, rest = [root_of(number) for number in groups[0]], numbers[shards:]
    while random.random() < 0.7:
        more = []
        for root in roots:
            fitting = [number for number in rest if root_of(number) == root]
            if not fitting:
                return groups
            rest.remove(fitting[0])
            more.append(fitting[0])
        groups.append(tuple(more))
    return groups


def draw_fault(random: Random, machines: list[str], kinds: list[str], is_gentle: bool, runs_s: float) -> Fault:
    """`runs_s`: when jobs begin to run, if nothing goes wrong."""
    machine, kind = random.choice(machines), random.choice(kinds)
    if kind == "device" and machine.startswith("host"):
        kind = "crash"
    lengths_s = [0.1] if is_gentle else [0.1, 1.0, 10.0]
    return Fault(
        kind=kind,
        at_s=round(random.choice([0.0, runs_s]) + random.uniform(0, random.choice([0.05, 0.5, LIFE_S])), 4),
        machine=machine,
        for_s=random.choice([0.1, 1.0, 5.0, 0.0] if kind == "crash" else lengths_s),
        silent=kind == "crash" and random.random() < 0.5,
        way=random.choice(["both", "in", "out"]) if kind == "partition" else "both",
    )
