"""Draws the long life of a cluster from a seed: a plan for each hour."""

from random import Random

from msgspec.structs import replace

from simulation.drawing import draw_fault, draw_hosts, draw_job, from_seed
from simulation.intrusion import add_stranger
from simulation.plan import HOUR_S, KEY, Plan

MANY_SESSIONS = 1_000_000  # more than are held in an hour


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
        job = draw_job(random, f"job {random.getrandbits(32):x}")
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
            for host in draw_hosts(random, job, list(plan.switches), len(hosts), is_gentle=True)
        ]
    machines = [f"host {one.number}" for one in hosts] + [f"switch {one.number}" for one in plan.switches]
    faults = []
    for _ in range(random.choice([0, 30, 60])):
        fault = draw_fault(random, machines, ["crash", "pause", "partition", "device"], is_gentle=False, runs_s=0.0)
        at_s = round(random.uniform(0, HOUR_S - 200), 4)
        faults.append(replace(fault, at_s=at_s, for_s=fault.for_s or 60.0))
    return add_stranger(random, replace(plan, jobs=tuple(jobs), hosts=tuple(hosts), faults=tuple(faults)))
