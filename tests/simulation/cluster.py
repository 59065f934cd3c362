"""A cluster of a plan: made, run to its end, and judged."""

import itertools
import logging
from collections.abc import Iterator

import msgspec
from _simulation import Faults, Packets

from simulation import judge
from simulation.hosts import HostMachine
from simulation.plan import HOUR_S, LIFE_S, Host, Plan
from simulation.switches import LEASE_S, SimulatedDataPlane, SwitchMachine, switch_key
from simulation.world import ViolationError, World


class NoSurvivedFault(logging.Handler):
    """Ends the run at a traceback in the log: there the product has met a fault of its own, and would go on."""

    def emit(self, record):
        if record.exc_info:
            raise ViolationError(record.getMessage()) from record.exc_info[1]


log = logging.getLogger("jax_passing")
log.setLevel(logging.ERROR)
log.propagate = False
log.addHandler(NoSurvivedFault())

# A session may wait for others in vain, or sum until its deadline, and meet all faults one after the other.
SESSION_MAX_S = judge.JOIN_DEADLINE_S + 2 * judge.DEADLINE_S + 2 * LEASE_S + 30.0
SETTLE_S = 60.0
SUSPENDED_APART_S = 0.5  # not all go on at the same moment


class Cluster:
    """All machines of a plan run in one world.

    Attributes:
      plan: what it is made of.
      world: its clock, and what has happened.
      switches, hosts: its machines, by number.
    """

    def __init__(self, plan: Plan, *, is_traced: bool = False):
        self.plan = plan
        faults = (Faults(**msgspec.structs.asdict(link)) for link in (plan.up, plan.down))
        packets = Packets(plan.seed, *faults, forge=plan.forge, from_anywhere=plan.from_anywhere)
        self.world = World(plan.seed, packets, stuck=plan.stuck, is_traced=is_traced)
        self._incarnations = itertools.count(1)
        self.switches = {}
        for one in plan.switches:
            self.switches[one.number] = self._switch_of(one)
        self.begin(plan)

    def begin(self, plan: Plan) -> None:
        """Its jobs, hosts and faults, at switches that are here already."""
        self.plan, self._began_s = plan, self.world.now()
        self._add_sites()
        self.hosts = {one.number: HostMachine(self, one, self._jobs[one.job]) for one in plan.hosts}
        self._hosts_left = len(self.hosts)
        for fault in plan.faults:
            self.world.call_later(fault.at_s, lambda fault=fault: self._befall(fault))

    def _switch_of(self, one):
        def make_data_plane(process):
            return SimulatedDataPlane(process, one, self.plan, self.incarnation)

        return SwitchMachine(
            self.world,
            one.number,
            make_data_plane,
            slots_per_job=one.slots_per_job,
            parent=one.parent,
            switch_key=switch_key(one.key),
            lanes_that_fit=one.lanes_that_fit,
            passes_what_fits=one.passes_what_fits,
        )

    def _add_sites(self):
        """Programs name sites of their jobs; from here on they name those of the packets."""
        self._jobs = {}
        for job in self.plan.jobs:
            numbers = [
                self.world.packets.add_site(
                    site.dtype, list(site.leaves), site.device_count, site.maxima, site.wire, site.moves, site.early
                )
                for site in job.sites
            ]
            programs = tuple(tuple(numbers[index] for index in program) for program in job.programs)
            self._jobs[job.name] = msgspec.structs.replace(job, programs=programs)

    # Machines ask these.

    def on_done(self):
        self._hosts_left -= 1

    def incarnation(self, parent) -> int:
        """Returns the incarnation for a job that a data plane begins: its parent's, or a new one at the root."""
        if parent is None:
            return next(self._incarnations)
        for machine in self.switches.values():
            if machine.process is not None and machine.host == parent.address[0]:
                found = machine.process.data_plane.incarnation_of.get((parent.job, parent.epoch))
                if found is not None:
                    return found
        return next(self._incarnations)  # the parent is gone: these sums have no results

    def incarnation_at(self, switch: int, welcome) -> int:
        process = self.switches[switch].process
        found = None
        if process is not None:
            found = process.data_plane.incarnation_of.get((welcome.job_id, welcome.epoch))
        return next(self._incarnations) if found is None else found

    # Faults.

    def _befall(self, fault):
        if fault.kind == "suspend":
            for each in (*self.switches.values(), *self.hosts.values()):
                each.pause(fault.for_s + self.world.random.uniform(0, SUSPENDED_APART_S))
            return
        kind, _, number = fault.machine.partition(" ")
        machine = (self.switches if kind == "switch" else self.hosts).get(int(number))
        if machine is None:  # of a plan that parts were taken away of
            return
        match fault.kind:
            case "crash":
                machine.crash(fault)
            case "pause":
                machine.pause(fault.for_s)
            case "device":
                machine.forget_all()
            case "partition":
                for other in (*self.switches.values(), *self.hosts.values()):
                    if other is not machine and fault.way in ("both", "out"):
                        machine.block(other, fault.for_s)
                    if other is not machine and fault.way in ("both", "in"):
                        other.block(machine, fault.for_s)

    # Its course.

    def run(self) -> None:
        """Raises ViolationError, or whatever the product raises that it shouldn't."""
        limit_s = max((self._longest_s(host) for host in self.plan.hosts), default=0.0)
        if not self.world.run(lambda: self._hosts_left == 0, self._began_s + limit_s):
            waiting = [number for number, host in self.hosts.items() if not host.is_done]
            raise ViolationError(f"hosts {waiting} hang: at {limit_s:g} s they have neither results nor an error")
        for fault in judge.faults(self.plan, self.sessions()):
            raise ViolationError(fault)
        self._settle()

    def _longest_s(self, host: Host) -> float:
        job = self._jobs[host.job]
        session_s = SESSION_MAX_S + job.executions * job.thinks_s
        if host.until_s is not None:
            return host.until_s + 2 * session_s
        return 2 * LIFE_S + (host.sessions + host.tries) * session_s

    def _settle(self):
        until_s = self.world.now() + SETTLE_S
        while left := self._leftovers():
            if self.world.now() >= until_s:
                raise ViolationError(f"left {SETTLE_S:g} s after the last session: {', '.join(left)}")
            self.world.run(lambda: False, self.world.now() + 0.5)
        for machine in self.switches.values():
            counts = machine.process.plane.stats()
            if counts.get("watches_failed"):
                raise ViolationError(f"{machine.host}: the watch over a job failed")

    def _leftovers(self):
        left = []
        for machine in self.switches.values():
            left += [f"{machine.host} is down"] if machine.process is None else machine.process.leftovers()
        packets = self.world.packets
        others = {
            "hosts with packets": packets.host_count,
            "sockets": packets.socket_count - sum(one.threads for one in self.plan.switches),
            "that hear of packets": len(self.world.on_event),
        }
        return left + [f"{count} {what}" for what, count in others.items() if count]

    def sessions(self) -> list[judge.SessionRecord]:
        return [record for host in self.hosts.values() for record in host.records]


def hours_of(plans: list[Plan]) -> Iterator[Cluster]:
    """One cluster, after each hour of its life, when nothing must be left of what was there."""
    cluster = Cluster(plans[0])
    for hour, plan in enumerate(plans):
        if hour > 0:
            cluster.begin(plan)
        cluster.run()
        cluster.world.run(lambda: False, (hour + 1) * HOUR_S)
        yield cluster
