"""An epoch starts when all ranks are here: it gets slots, multicast or not, the data plane, and its hosts a welcome."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from jax_passing.errors import NoSlotsError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.keys import KEY_BYTES, packet_key
from jax_passing.protocol.outside import Outside
from jax_passing.switch.data_planes.data_plane import DataPlane, JobKeys, JobSlots, Parent, unexpected
from jax_passing.switch.data_planes.reach import reach_at_planes
from jax_passing.switch.jobs.admission import RefusalError, least, plan_for
from jax_passing.switch.jobs.chronicle import Chronicle
from jax_passing.switch.jobs.epoch_states import EpochState, Event
from jax_passing.switch.jobs.epochs import Epoch, Member
from jax_passing.switch.jobs.group_probe import GroupProbe, ProbeStep
from jax_passing.switch.jobs.slot_partition import SlotPartition, room_of_slot

log = logging.getLogger("jax_passing.switch")

PROBE_TICK_S = 0.01


@dataclass(frozen=True)
class Secrets:
    """The keys of an epoch's packets are derived from these, which are drawn anew for each epoch."""

    contributions: list[bytes]  # one a worker, which only that worker is told
    results: bytes

    def keys(self) -> JobKeys:
        return JobKeys(tuple(map(packet_key, self.contributions)), packet_key(self.results))


class EpochStart:
    """The root prepares when all ranks are here, the switches below when their parents say so."""

    def __init__(
        self,
        data_plane: DataPlane,
        slots_per_address: int | None,
        counts: Counter[str],
        refuse: Callable[..., None],
        outside: Outside,
        chronicle: Chronicle,
    ):
        """`refuse` (epoch, text, kind of error, JoinError if none): sends all who wait away."""
        self._data_plane = data_plane
        self._outside = outside
        self._counts = counts
        self._refuse = refuse
        self._chronicle = chronicle
        self._partition = SlotPartition(data_plane.slot_total, slots_per_address)

    @property
    def slots_held(self) -> int:
        return self._partition.held

    # Preparing.

    def prepare(self, epoch: Epoch, above: messages.Prepare | None = None) -> None:
        """Is called when all ranks are here; at a switch below, when the parent says so. Comes again if one of them
        went meanwhile."""
        if epoch.state is EpochState.PREPARING:
            self.step_back(epoch)
        epoch.on(Event.ALL_HERE)
        epoch.attempt += 1
        epoch.preparing_since = self._outside.now()
        try:
            epoch.plan = plan = above or plan_for(epoch, epoch.attempt)
        except RefusalError as error:
            self._refuse(epoch, str(error))
            return
        addresses = {member.connection.host for member in epoch.members}
        room = plan.slot_count * room_of_slot(plan.lanes_per_chunk)
        if (owner := self._partition.who_has_enough(room, addresses)) is not None:
            self._refuse(
                epoch,
                f"Jobs with hosts or racks at {owner} hold as many slots of the switch at {epoch.own_name} as one "
                "address may (slots_per_address). Wait for one to end, or let the switch's operator allow more.",
                reason="quota",
            )
            return
        epoch.slot_first = self._partition.allocate(room, addresses)
        if epoch.slot_first is None:
            self._refuse(
                epoch,
                f"The switch at {epoch.own_name} has no {room} free slots of its "
                f"{self._data_plane.slot_total}: too many jobs run at once. Wait for one to end, give the switch more "
                "slot_total or less slots_per_job, or let sums go elsewhere (standby).",
                NoSlotsError.__name__,
            )
            return
        for member in epoch.members:
            member.prepared = not member.rack
            if member.rack:
                ranks = tuple(sorted(member.ranks))
                member.connection.send(msgspec.structs.replace(plan, attempt=epoch.attempt, ranks=ranks))
        self._offer_group(epoch)
        self._go_on(epoch)

    def step_back(self, epoch: Epoch) -> None:
        """Is called when a rank went away, or the parent."""
        epoch.on(Event.GONE)
        epoch.probe, epoch.plan = None, None
        self.release(epoch)

    def release(self, epoch: Epoch) -> None:
        """Frees the slots."""
        if epoch.slot_first is not None:
            self._partition.free(epoch.slot_first)
            epoch.slot_first = None

    def prepared(self, epoch: Epoch, member: Member, attempt: int) -> None:
        """Notes that a rack's switch is prepared."""
        if epoch.state is EpochState.PREPARING and attempt == epoch.attempt:
            member.prepared = True
            self._go_on(epoch)

    def _go_on(self, epoch: Epoch) -> None:
        if epoch.state is not EpochState.PREPARING or epoch.probe is not None:
            return
        if not all(member.prepared for member in epoch.members):
            return
        if epoch.uplink is None:
            self.start(epoch)
        else:
            assert epoch.plan is not None
            epoch.uplink.send(messages.Prepared(epoch.plan.attempt))

    # Multicast or not.

    def _offer_group(self, epoch: Epoch) -> None:
        """Asks all members whether they hear a group, if the data plane has one and there is anything to gain."""
        epoch.group = None
        own = {member.connection.own_host for member in epoch.members}
        if len(own) > 1 or len(epoch.members) == 1:
            return
        group = self._data_plane.group(epoch.job.number, own.pop())
        if group is None:
            return
        nonce = self._outside.random_bits(32)
        epoch.probe = GroupProbe(group, nonce, [member.rank for member in epoch.members], self._outside.now())
        offer = messages.GroupOffer(group.address, group.port, epoch.job.number, epoch.number, nonce)
        for member in epoch.members:
            member.connection.send(offer)
        self._probe_later(epoch, epoch.probe)

    def _probe_later(self, epoch: Epoch, probe: GroupProbe) -> None:
        self._outside.call_later(PROBE_TICK_S, partial(self._on_tick, epoch, probe))

    def _on_tick(self, epoch: Epoch, probe: GroupProbe) -> None:
        if epoch.probe is probe:  # else that attempt is over
            self._probe_later(epoch, probe)
            self._advance_probe(epoch)

    def group_answer(self, epoch: Epoch, member: Member, answer: messages.GroupReady | messages.GroupHeard) -> None:
        probe = epoch.probe
        if probe is None or probe.nonce != answer.nonce:
            return  # about an earlier attempt
        if isinstance(answer, messages.GroupReady):
            probe.ready(member.rank, answer.problem)
        else:
            probe.heard(member.rank)
        self._advance_probe(epoch)

    def _advance_probe(self, epoch: Epoch) -> None:
        """Does what is due."""
        probe = epoch.probe
        if probe is None:
            return
        match probe.step(self._outside.now()):
            case ProbeStep.SEND:
                try:
                    self._probe(epoch, probe)
                except Exception as error:  # whatever the device's driver raises
                    probe.fail(f"the data plane can't send to {probe.group.address} ({error})")
            case ProbeStep.HEARD:
                epoch.probe, epoch.group = None, probe.group
                self._go_on(epoch)
            case ProbeStep.NOT_HEARD:
                log.info("%s: each member is sent its own results: %s", epoch, probe.reason)
                epoch.probe = None
                self._go_on(epoch)

    def _probe(self, epoch: Epoch, probe: GroupProbe) -> None:
        assert epoch.plan is not None
        lanes = epoch.plan.lanes_per_chunk
        self._data_plane.probe(probe.group, epoch.job.number, epoch.number, probe.nonce, lanes)

    def group_lost(self, epoch: Epoch, member: Member) -> None:
        """Ends multicast for all members: one that asks again for each result slows all of them down."""
        if epoch.group is None or epoch.slot_first is None:
            return
        log.warning(
            "%s: %s no longer hears the multicast group: each member is sent its own results from now on. Do the "
            "network's switches that snoop IGMP have a querier?",
            epoch,
            member,
        )
        self._counts["groups_lost"] += 1
        epoch.group = None
        try:
            self._data_plane.stop_multicast(epoch.job.number)
        except Exception:  # whatever the device's driver raises; that member still gets its results by asking again
            log.exception("%s: the data plane didn't stop multicast", epoch)

    # Starting.

    def start(self, epoch: Epoch, above: messages.Welcome | None = None) -> None:
        """Starts the epoch. `above`: the parent's welcome, at a switch that has one."""
        assert epoch.plan is not None
        secrets = self._new_secrets(len(epoch.workers())) if epoch.plan.tagged else None
        if not self._add_job(epoch, above, secrets):
            return
        epoch.on(Event.ALL_PREPARED)
        epoch.job.began = {join.instance for join in epoch.joined().values()}
        self._counts["epochs_started"] += 1
        self._chronicle.started(epoch)  # before hosts hear of it: traces align clocks by that
        self._welcome(epoch, above, secrets)

    def _new_secrets(self, worker_count: int) -> Secrets:
        return Secrets([self._random_bytes() for _ in range(worker_count)], self._random_bytes())

    def _random_bytes(self) -> bytes:
        return self._outside.random_bits(8 * KEY_BYTES).to_bytes(KEY_BYTES)

    def _add_job(self, epoch: Epoch, above: messages.Welcome | None, secrets: Secrets | None) -> bool:
        """Returns whether the data plane has taken it; else all who wait have been sent away."""
        plan, slot_first, uplink = epoch.plan, epoch.slot_first, epoch.uplink
        assert plan is not None
        assert slot_first is not None
        parent = None
        if above is not None:
            assert uplink is not None
            parent = Parent(
                job=above.job_id,
                epoch=above.epoch,
                slot_first=above.slot_first,
                worker=above.worker,
                address=uplink.data_address,
                socket=uplink.socket,
                keys=above.packet_keys,
            )
        addresses = tuple(member.address for member in epoch.workers())
        shards = next(iter(epoch.joined().values())).shards  # alike of all ranks
        try:
            self._data_plane.add_job(
                JobSlots(
                    epoch.job.number,
                    epoch.number,
                    slot_first,
                    plan.slot_count,
                    addresses,
                    epoch.group,
                    parent,
                    keys=secrets.keys() if secrets else None,
                    reach=reach_at_planes(plan.slot_count, shards, plan.planes, plan.threads),
                    lanes_per_chunk=plan.lanes_per_chunk,
                    own_addresses=tuple(member.connection.own_host for member in epoch.workers()),
                    planes=plan.planes,
                )
            )
        except Exception as error:  # whatever the device's driver raises
            log.error("%s: the data plane refused it: %s", epoch, error, exc_info=unexpected(error))
            self._refuse(
                epoch,
                f"The data plane of the switch at {epoch.own_name} refused the job ({error}). Look at its log.",
                reason="data_plane",
            )
            return False
        return True

    def remove_job(self, epoch: Epoch) -> None:
        """Drops the packets of an epoch that has started."""
        try:
            self._data_plane.remove_job(epoch.job.number)
        except Exception as error:  # whatever the device's driver raises; other jobs go on
            log.error("%s: the data plane didn't remove it: %s", epoch, error, exc_info=unexpected(error))

    def _welcome(self, epoch: Epoch, above: messages.Welcome | None, secrets: Secrets | None) -> None:
        plan, slot_first, joins = epoch.plan, epoch.slot_first, epoch.joined().values()
        assert plan is not None
        assert slot_first is not None
        if above is not None:  # of the whole tree
            slowest, slowest_switch = above.link_gbit, above.switch_link_gbit
        else:
            slowest = least(*(join.link_gbit for join in joins))
            slowest_switch = least(*(join.switch_link_gbit for join in joins))
        nonce = self._random_bytes() if above is None else above.nonce
        own = {member.connection.own_host for member in epoch.members}
        has_one_port = slowest_switch is not None or self._data_plane.has_one_port(own)
        ranks_at_port = max(len(epoch.members) if has_one_port else 1, above.ranks_at_port if above else 1)
        by_rank = [join.host_nonce for _, join in sorted(epoch.joined().items())]
        host_nonces = above.host_nonces if above else tuple(by_rank) if all(by_rank) else ()
        for worker, member in enumerate(epoch.workers()):
            member.connection.send(
                messages.Welcome(
                    job_id=epoch.job.number,
                    epoch=epoch.number,
                    slot_first=slot_first,
                    slot_count=plan.slot_count,
                    worker=worker,
                    lanes_per_chunk=plan.lanes_per_chunk,
                    whole_chunks=plan.whole_chunks,
                    bare=self._data_plane.takes_bare and (above is None or above.bare),
                    worker_limit=self._data_plane.worker_limit,
                    multicast=epoch.group is not None,
                    contribution_secret=secrets.contributions[worker] if secrets else None,
                    result_secret=secrets.results if secrets else None,
                    nonce=nonce,
                    host_nonces=host_nonces,
                    link_gbit=slowest,
                    switch_link_gbit=slowest_switch,
                    ranks_at_port=ranks_at_port,
                    planes=plan.planes,
                    threads=plan.threads,
                )
            )
