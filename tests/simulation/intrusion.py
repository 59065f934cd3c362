"""Draws what strangers can send in a cluster, and how its switches and hosts keep them out."""

from random import Random

from msgspec.structs import replace

from simulation.plan import KEY, LIFE_S, STRANGERS, Plan, Site


def leave_open(random: Random, plan: Plan) -> Plan:
    """Keeps nobody out; strangers send from their own address only."""
    return replace(plan, forge=random.choice([0.0, 0.0, 0.1]))


def tag_packets(random: Random, plan: Plan) -> Plan:
    """Lets all packets have tags: nothing that strangers send matters, and no bit that is flipped."""
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
    return add_stranger(random, plan) if random.random() < 0.5 else plan


def check_sums(random: Random, plan: Plan) -> Plan:
    """Lets some switches be unable to tag, or nobody have a key: what strangers send may end jobs, and makes no sum
    wrong."""
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
    return add_stranger(random, plan) if has_keys and random.random() < 0.5 else plan


def _checkable(site: Site) -> Site:
    """Maxima aren't checked, and of integers the highest bits badly."""
    return replace(site, dtype="float32", maxima=False) if "int" in site.dtype else site


def add_stranger(random: Random, plan: Plan) -> Plan:
    """Adds a host that takes itself for a rank of a job, and doesn't have the key."""
    rank = random.choice(plan.hosts)
    number = 1 + max(host.number for host in plan.hosts)
    starts_s = round(random.uniform(0, random.choice([rank.starts_s, LIFE_S])), 4)
    stranger = replace(rank, number=number, starts_s=starts_s, does=random.choice(STRANGERS))
    return replace(plan, hosts=(*plan.hosts, stranger))
