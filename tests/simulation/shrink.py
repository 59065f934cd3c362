"""Takes parts of a plan away while it still fails."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from simulation.plan import Job, Link, Plan, Site

TRIALS_MAX = 400


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The smallest plan that was found with `fails` true; what fails may be something else than at first."""
    trials = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(plan):
            if trials == TRIALS_MAX:
                return plan
            trials += 1
            if fails(smaller):
                plan, is_smaller = smaller, True
                break
    return plan


def _without(items: tuple, index: int) -> tuple:
    return items[:index] + items[index + 1 :]


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yields smaller plans; those from which most is taken away come first."""
    for job in plan.jobs if len(plan.jobs) > 1 else ():
        hosts = tuple(host for host in plan.hosts if host.job != job.name)
        yield replace(plan, jobs=tuple(other for other in plan.jobs if other is not job), hosts=hosts)
    for index in range(len(plan.faults)):
        yield replace(plan, faults=_without(plan.faults, index))
    for index, job in enumerate(plan.jobs):
        for smaller in _smaller_jobs(job):
            hosts = tuple(host for host in plan.hosts if host.job != job.name or host.rank < smaller.world_size)
            jobs = (*plan.jobs[:index], smaller, *plan.jobs[index + 1 :])
            yield replace(plan, jobs=jobs, hosts=hosts)
    for index, host in enumerate(plan.hosts):
        changes = {"sessions": 1, "tries": 1, "starts_s": 0.0, "does": ""}
        is_other = host.does == "intrudes" or host.is_stranger
        if is_other:
            yield replace(plan, hosts=_without(plan.hosts, index))
        for name, least in changes.items():
            if getattr(host, name) != least and not (name == "does" and is_other):
                yield replace(
                    plan, hosts=(*plan.hosts[:index], replace(host, **{name: least}), *plan.hosts[index + 1 :])
                )
    needed = {number for host in plan.hosts for number in host.switches} | {one.parent for one in plan.switches}
    for index, switch in enumerate(plan.switches):
        if switch.number not in needed:
            yield replace(plan, switches=_without(plan.switches, index))
        elif switch.multicast:
            quiet = replace(switch, multicast=False)
            yield replace(plan, switches=(*plan.switches[:index], quiet, *plan.switches[index + 1 :]))
    for way in ("up", "down"):
        link = getattr(plan, way)
        for name in ("loss", "duplicate", "reorder", "flip", "brings_flipped", "stale"):
            if getattr(link, name):
                yield replace(plan, **{way: replace(link, **{name: getattr(Link(), name)})})
    for name in ("stuck", "refuses", "forge", "first_position", "from_anywhere"):
        if getattr(plan, name):
            yield replace(plan, **{name: type(getattr(plan, name))()})


def _smaller_jobs(job: Job) -> Iterator[Job]:
    if job.world_size > 1:
        sites = tuple(_with_leaves(site, site.leaves, job.world_size - 1) for site in job.sites)
        yield replace(job, world_size=job.world_size - 1, sites=sites)
    if len(job.programs) > 1:
        yield replace(job, programs=job.programs[:1])
    if job.executions > 1:
        yield replace(job, executions=job.executions // 2)
    if len(job.programs[0]) > 1:
        yield replace(job, programs=(job.programs[0][:1], *job.programs[1:]))
    sites = tuple(_with_leaves(site, (site.leaves[0] // 4,), job.world_size) for site in job.sites)
    if sum(sum(site.leaves) for site in sites) < sum(sum(site.leaves) for site in job.sites):
        yield replace(job, sites=sites)


def _with_leaves(site: Site, leaves: tuple[int, ...], world_size: int) -> Site:
    """Each leaf has an element at least and, where each rank has a row of it, as many for each."""
    rows = 1 if site.moves == "all" else world_size
    return replace(site, leaves=tuple(max(1, -(-elements // rows)) * rows for elements in leaves))
