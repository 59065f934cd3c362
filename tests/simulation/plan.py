"""A plan says which parts a simulated cluster has, what its hosts do and what goes wrong: data, drawn from a seed.

A plan says nothing of the product, and parts of it can be taken away (shrink.py). Switches and hosts are known by their
numbers, which stay when others are taken away; all of chance that a plan doesn't settle is drawn from its seed as well.
"""

from random import Random

import msgspec
from msgspec.structs import replace

# Hosts without the key do one of these: they say so, guess another one, or join without proof.
STRANGERS = ("lacks the key", "has another key", "joins without the key")
KEY = 1

LIFE_S = 3.0  # most of what happens does so by then
RTO_US = 10_000  # the first one
HOUR_S = 3600.0
MANY_SESSIONS = 1_000_000  # more than are held in an hour


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Link(Struct):
    """A link loses, delays and changes packets of one direction: shares of them, and times."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # share that is late, by up to `reorder_us`
    reorder_us: int = 0
    delay_us: int = 20
    flip: float = 0.0
    stale: float = 0.0  # share that comes once more, up to `stale_us` later
    stale_us: int = 0
    brings_flipped: bool = False  # else UDP's checksum drops what has changed


class Switch(Struct):
    number: int
    parent: int | None = None
    slots_per_job: int = 16
    slot_total: int = 256
    lanes_per_chunk: int = 64
    whole_chunks: bool = False
    multicast: bool = True
    key: int = 0  # which one; 0: none
    tags: bool = False  # it can, as soon as it has a key


class Site(Struct):
    dtype: str
    leaves: tuple[int, ...]
    device_count: int = 1
    maxima: bool = False


class Job(Struct):
    """`programs`: sums of each execution, as indices of `sites`, one of which hosts run again and again in turn.

    `ahead`: how many executions a host begins before the first of them is done. `thinks_s`: how long it computes before
    the next one, at most.
    """

    name: str
    world_size: int
    sites: tuple[Site, ...]
    programs: tuple[tuple[int, ...], ...]
    executions: int
    ahead: int = 1
    spread_us: int = 200
    thinks_s: float = 0.0
    checks_sums: bool = False  # also where packets have tags, or nobody has a key


class Host(Struct):
    """A machine with one process at a time, which holds `sessions` sessions one after the other, and as many more as
    fail, up to `tries`.

    `switches`: by shard. `until_s`: when no more sessions begin, if not all were held by then. `does`: what nobody
    should do, if anything (hosts.py).
    """

    number: int
    job: str
    rank: int
    switches: tuple[int, ...]
    starts_s: float = 0.0
    sessions: int = 1
    tries: int = 3
    until_s: float | None = None
    does: str = ""

    @property
    def is_stranger(self) -> bool:
        return self.does in STRANGERS


class Fault(Struct):
    """`kind`: "crash", of the process (others hear it at once) or of the machine (`silent`), which begins anew after
    `for_s`, a host without `for_s` never; "pause"; "partition", from and to the rest of the world, or one way only;
    "device": a switch's data plane forgets all."""

    kind: str
    at_s: float
    machine: str  # "host 3" or "switch 0"
    for_s: float = 0.0
    silent: bool = False
    way: str = "both"  # "in", "out"

    @property
    def is_gentle(self) -> bool:
        """Nobody may fail because of it."""
        return self.kind in ("pause", "partition") and self.for_s <= 0.1


class Plan(Struct):
    seed: int
    up: Link
    down: Link
    switches: tuple[Switch, ...]
    jobs: tuple[Job, ...]
    hosts: tuple[Host, ...]
    faults: tuple[Fault, ...] = ()
    first_position: int = 0  # of all jobs
    forge: float = 0.0  # share of packets beside which strangers send one of theirs
    from_anywhere: bool = False  # in anybody's name
    stuck: float = 0.0  # share of lines on a control connection that take seconds
    refuses: float = 0.0  # share of jobs that a data plane refuses

    @property
    def is_gentle(self) -> bool:
        """Every session ends well, but those of strangers."""
        alone = all(fault.is_gentle for fault in self.faults)
        alone &= not any(host.does and not host.is_stranger for host in self.hosts)
        return alone and not self.stuck and not self.refuses and self.is_safe and self.has_one_key

    @property
    def only_hosts_fail(self) -> bool:
        """Switches, and all connections, are sound."""
        crashes = all(fault.kind == "crash" and fault.machine.startswith("host") for fault in self.faults)
        return crashes and not self.stuck and not self.refuses and self.is_safe and self.has_one_key

    @property
    def has_one_key(self) -> bool:
        """Or none: then nobody is sent away for want of the right one."""
        return all(switch.key == KEY for switch in self.switches) or not any(switch.key for switch in self.switches)

    @property
    def is_safe(self) -> bool:
        """Nobody can send what isn't his, or change what others send, without anybody noticing it at once."""
        is_open = self.from_anywhere or self.up.brings_flipped or self.down.brings_flipped
        return not is_open or all(switch.key and switch.tags for switch in self.switches)


def encode(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()


def decode(text: str) -> Plan:
    return msgspec.json.decode(text, type=Plan)


def from_seed(seed: int) -> Plan:
    random = Random(seed)
    is_gentle = random.random() < 0.3
    up, down = (_link(random) for _ in range(2))
    switches = _switches(random)
    jobs, hosts = [], []
    for index in range(random.choice([1, 1, 2, 3])):
        job = _job(random, f"job {index}")
        jobs.append(job)
        hosts += _hosts(random, job, switches, len(hosts), is_gentle)
    machines = [f"host {one.number}" for one in hosts]
    kinds = ["pause", "partition"] if is_gentle else ["crash"]
    if not is_gentle and random.random() < 0.5:  # else hosts alone fail, of which more is expected
        machines += [f"switch {one.number}" for one in switches] * 2
        kinds += ["crash", "pause", "partition", "partition", "device"]
    runs_s = max(host.starts_s for host in hosts)
    faults = tuple(_fault(random, machines, kinds, is_gentle, runs_s) for _ in range(random.choice([0, 1, 1, 2, 3])))
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
    return random.choice([_open, _open, _open, _tagged, _tagged, _checked])(random, plan)


# A long life.


def life_from_seed(seed: int, hours: int) -> list[Plan]:
    """Returns a plan for each hour of one cluster. Its switches and links stay; jobs and hosts change every hour, and
    faults come at random. All packets have tags, and strangers are there all the time."""
    random = Random(f"life {seed}")
    plan = from_seed(seed)
    switches = tuple(replace(one, key=KEY, tags=True, whole_chunks=False) for one in plan.switches)
    up, down = (replace(link, loss=0.01, flip=0.01, brings_flipped=True) for link in (plan.up, plan.down))
    plan = replace(plan, switches=switches, up=up, down=down, forge=0.02, from_anywhere=True, stuck=0.0, refuses=0.0)
    return [_hour(random, plan) for _ in range(hours)]


def _hour(random: Random, plan: Plan) -> Plan:
    """Sums are sparse: hosts compute most of the time, and jobs last for a part of the hour."""
    jobs, hosts = [], []
    for _ in range(random.choice([1, 2, 3])):
        job = _job(random, f"job {random.getrandbits(32):x}")
        sites = tuple(replace(site, leaves=(1 + random.randrange(100),)) for site in job.sites)
        job = replace(job, sites=sites, executions=random.choice([10, 100]), thinks_s=2.0)
        jobs.append(job)
        lasts_s = random.choice([100.0, 1000.0, 2500.0])
        begins_s = round(random.uniform(0, HOUR_S - 500 - lasts_s), 4)
        hosts += [
            replace(
                host,
                starts_s=begins_s + host.starts_s,
                until_s=begins_s + lasts_s,
                sessions=MANY_SESSIONS,
                tries=MANY_SESSIONS,
            )
            for host in _hosts(random, job, list(plan.switches), len(hosts), is_gentle=True)
        ]
    machines = [f"host {one.number}" for one in hosts] + [f"switch {one.number}" for one in plan.switches]
    faults = []
    for _ in range(random.choice([0, 30, 60])):
        fault = _fault(random, machines, ["crash", "pause", "partition", "device"], is_gentle=False, runs_s=0.0)
        at_s = round(random.uniform(0, HOUR_S - 200), 4)
        faults.append(replace(fault, at_s=at_s, for_s=fault.for_s or 60.0))
    return _with_stranger(random, replace(plan, jobs=tuple(jobs), hosts=tuple(hosts), faults=tuple(faults)))


# Keys, and strangers that are kept out.


def _open(random: Random, plan: Plan) -> Plan:
    """Strangers have their own address only."""
    return replace(plan, forge=random.choice([0.0, 0.0, 0.1]))


def _tagged(random: Random, plan: Plan) -> Plan:
    """Nothing that strangers send matters, and no bit that is flipped."""
    switches = [replace(switch, key=KEY, tags=True, whole_chunks=False) for switch in plan.switches]
    if not plan.is_gentle and random.random() < 0.1:
        other = random.randrange(len(switches))
        switches[other] = replace(switches[other], key=KEY + 1)
    plan = replace(
        plan,
        switches=tuple(switches),
        jobs=tuple(replace(job, checks_sums=random.random() < 0.2) for job in plan.jobs),
        forge=random.choice([0.0, 0.02, 0.2]),
        from_anywhere=True,
        up=replace(plan.up, brings_flipped=True),
        down=replace(plan.down, brings_flipped=True),
    )
    return _with_stranger(random, plan) if random.random() < 0.5 else plan


def _checked(random: Random, plan: Plan) -> Plan:
    """Not all switches can tag, or nobody has a key. What strangers send may end jobs, and makes no sum wrong."""
    has_keys = random.random() < 0.7
    switches = [
        replace(switch, key=KEY * has_keys, tags=not switch.whole_chunks and random.random() < 0.3)
        for switch in plan.switches
    ]
    jobs = tuple(replace(job, checks_sums=not has_keys or random.random() < 0.2) for job in plan.jobs)
    plan = replace(plan, switches=tuple(switches), jobs=jobs)
    if random.random() < 0.6:
        plan = replace(
            plan,
            jobs=tuple(replace(job, sites=tuple(map(_checkable, job.sites))) for job in plan.jobs),
            forge=random.choice([0.0, 0.0005, 0.02]),
            from_anywhere=True,
            up=replace(plan.up, brings_flipped=True),
            down=replace(plan.down, brings_flipped=True),
        )
    return _with_stranger(random, plan) if has_keys and random.random() < 0.5 else plan


def _checkable(site: Site) -> Site:
    """Maxima aren't checked, and of integers the highest bits badly."""
    return replace(site, dtype="float32", maxima=False) if "int" in site.dtype else site


def _with_stranger(random: Random, plan: Plan) -> Plan:
    """Adds a host that takes itself for a rank of a job, and doesn't have the key."""
    rank = random.choice(plan.hosts)
    number = 1 + max(host.number for host in plan.hosts)
    starts_s = round(random.uniform(0, random.choice([rank.starts_s, LIFE_S])), 4)
    stranger = replace(rank, number=number, starts_s=starts_s, does=random.choice(STRANGERS))
    return replace(plan, hosts=(*plan.hosts, stranger))


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
                multicast=random.random() < 0.6,
            )
        )
    return switches


def _job(random: Random, name: str) -> Job:
    sites = tuple(_site(random) for _ in range(random.randint(1, 4)))
    programs = tuple(
        tuple(random.randrange(len(sites)) for _ in range(random.randint(1, 4))) for _ in range(random.choice([1, 2]))
    )
    return Job(
        name=name,
        world_size=random.choice([1, 2, 2, 3, 4, 6]),
        sites=sites,
        programs=programs,
        executions=random.choice([1, 4, 8]),
        ahead=random.choice([1, 1, 3]),
        spread_us=random.choice([1, 200, 3000]),
        thinks_s=random.choice([0.0, 0.05, 0.5]),
    )


def _site(random: Random) -> Site:
    dtype = random.choice(["float32", "float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"])
    return Site(
        dtype=dtype,
        leaves=tuple(1 + random.randrange(random.choice([3, 100, 1000])) for _ in range(random.choice([1, 1, 2, 4]))),
        device_count=random.choice([1, 1, 2]),
        maxima=dtype == "int32" and random.random() < 0.5,
    )


def _hosts(random: Random, job: Job, switches: list[Switch], first: int, is_gentle: bool) -> list[Host]:
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
                starts_s=round(random.uniform(0, random.choice([0.01, 0.5, LIFE_S / 2])), 4),
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


def _fault(random: Random, machines: list[str], kinds: list[str], is_gentle: bool, runs_s: float) -> Fault:
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
