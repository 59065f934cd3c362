"""A switch has jobs: here it is said who may join them, and how members and epochs end."""

import logging
from collections import Counter
from collections.abc import Callable, Collection

from jax_passing import job_names
from jax_passing.config import SHARDS_MAX
from jax_passing.errors import HostLostError, JoinError, SwitchLostError, names
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Outside
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.admission import RefusalError, check_fits, check_room
from jax_passing.switch.jobs.chronicle import Chronicle
from jax_passing.switch.jobs.drain import Drain
from jax_passing.switch.jobs.epoch_start import EpochStart
from jax_passing.switch.jobs.epoch_states import EpochState, Event
from jax_passing.switch.jobs.epochs import Epoch, Job, Member, ParentConnection
from jax_passing.switch.jobs.numbers import Numbers

log = logging.getLogger("jax_passing.switch")

# Why a host is gone without a word: one that ends by an exception, Ctrl-C among them, says so itself.
CRASHED = "It was killed or crashed"
STANDS_STILL = "It stands still, died, or its network was cut"

JOBS_MAX = 4096  # remembered ones, for their numbers


class JobTable:
    """The table has all jobs, and the slots that they hold. `lease_s`: a host that is silent for so long is lost."""

    def __init__(
        self,
        data_plane: DataPlane,
        outside: Outside,
        *,
        lease_s: float,
        slots_per_address: int | None = None,
        uplink_for: Callable[[Epoch], ParentConnection] | None = None,
    ):
        """Makes an empty table. `uplink_for`: of a switch with a parent, makes an epoch's way to that."""
        self._data_plane = data_plane
        self._outside = outside
        self.lease_s = lease_s
        self._uplink_for = uplink_for
        self._jobs: dict[str, Job] = {}
        self._numbers = Numbers(outside)
        self.counts: Counter[str] = Counter()
        self.check_met: Callable[[messages.RankJoin, str], None] = lambda join, job: None  # may raise RefusalError
        self.chronicle, self.drain = Chronicle(data_plane, outside), Drain(outside)
        self.starts = EpochStart(data_plane, slots_per_address, self.counts, self.refuse_all, outside, self.chronicle)

    def epochs(self) -> list[Epoch]:
        """Returns the epochs that form or run."""
        return [job.epoch for job in self._jobs.values() if job.epoch is not None]

    def of(self, name: str) -> Job | None:
        return self._jobs.get(name)

    # Admission.

    def _job(self, name: str) -> Job:
        job = self._jobs.pop(name, None)
        if job is None:
            if len(self._jobs) >= JOBS_MAX:
                idle = next((known for known in self._jobs.values() if known.epoch is None), None)
                if idle is None:
                    raise RefusalError(f"{JOBS_MAX} jobs run on this switch already.", "quota")
                del self._jobs[idle.name]
            job = Job(name, self._numbers.new_job({known.number for known in self._jobs.values()}))
        self._jobs[name] = job  # last in the dict: used most recently
        return job

    def _give_up_old(self, job: Job, join: messages.RankJoin, member: Member) -> None:
        """Ends what the same process has here: it gave an old connection up, though that news may not have arrived."""
        for old in list(job.epoch.members) if job.epoch is not None else []:
            epoch = old.epoch
            if old is member or epoch is None or epoch.state is EpochState.OVER:
                continue
            if member.rack and old.rack and old.instance == member.instance:
                self.lose(epoch, old, "connected anew")
            elif join.rank in old.ranks and old.ranks[join.rank].instance == join.instance:
                self.gone(epoch, old, join.rank, "joined anew")
                if old.rack:
                    old.connection.send(messages.Refused(JoinError.__name__, "It joined anew elsewhere.", join.rank))

    def _epoch_to_join(self, job: Job, join: messages.RankJoin, member: Member) -> Epoch:
        self._give_up_old(job, join, member)
        epoch = job.epoch
        if epoch is None:
            if self._numbers.is_used_up(job.number):
                job.number = self._numbers.new_job({known.number for known in self._jobs.values()})
            epoch = Epoch(job, self._numbers.new_epoch(job.number), join.world_size, self._outside.now())
            job.lost = set()
        elif epoch.state is EpochState.RUNNING:
            raise RefusalError(
                f"Job {job.name!r} is running (epoch {epoch.number}) and rank {join.rank} is in it. Stop that run, or "
                f"choose another job name (JAX_PASSING_JOB). A host that died without a trace is noticed after "
                f"{self.lease_s:g} s; then the job can be joined again.",
                "taken",
            )
        elif epoch.state is EpochState.PREPARING and epoch.uplink is not None:
            # The parent counts on the ranks that were here, and we have said that these are prepared.
            raise RefusalError(
                f"Job {job.name!r} is starting (epoch {epoch.number}) with {epoch.world_size} other hosts: rank "
                f"{join.rank} is among them, at this switch or another. If this is that host, which has just been "
                "restarted or moved, start it again; else stop that run, or choose another job name (JAX_PASSING_JOB).",
                "taken",
            )
        hosts = [host for shard in self._shards(job.name) for host in shard.members if not host.rack]
        check_fits(epoch, join, member, self._data_plane.worker_limit, hosts)
        return epoch

    def _shards(self, name: str) -> list[Epoch]:
        """Returns the epochs of all shards here of the job that this one is, or is a shard of."""
        whole = name.partition(job_names.SHARD_MARK)[0]
        jobs = (self._jobs.get(job_names.of_shard(whole, shard)) for shard in range(SHARDS_MAX))
        return [job.epoch for job in jobs if job is not None and job.epoch is not None]

    def admit(self, name: str, join: messages.RankJoin, member: Member) -> None:
        """Lets a rank join. At the root the last one to join starts the epoch. Raises RefusalError."""
        self.drain.check(name)
        self.check_met(join, name)
        if member.rack:
            check_room(member, self.epochs())
        job = self._job(name)
        epoch = self._epoch_to_join(job, join, member)
        is_new, job.epoch = job.epoch is not epoch, epoch
        member.epoch = epoch
        member.ranks[join.rank] = join
        epoch.gone.discard(join.rank)
        member.join_until[join.rank] = self._outside.now() + join.wait_s
        if member not in epoch.members:
            epoch.members.append(member)
        self.chronicle.joined(epoch, join)
        if is_new and self._uplink_for is not None:
            epoch.uplink = self._uplink_for(epoch)
            epoch.uplink.start()
        elif epoch.uplink is not None:
            epoch.uplink.tell_of(member, join.rank)
        elif not epoch.absent():
            self.starts.prepare(epoch)

    # Refusals.

    def refused(self, name: str, message: str) -> None:
        """Notes that a host wasn't admitted: those who wait for it will hear why."""
        self.counts["joins_refused"] += 1
        for epoch in self._shards(name):
            epoch.refusal = message
            if epoch.uplink is not None:
                epoch.uplink.send(messages.Refused(JoinError.__name__, message))

    def refuse(self, epoch: Epoch, refused: messages.Refused) -> None:
        """Sends the one rank away."""
        assert refused.rank is not None
        member = epoch.member_of(refused.rank)
        if member is None:
            return
        self.counts["joins_refused"] += 1
        if member.rack:
            member.connection.send(refused)
        else:
            member.connection.send(messages.Refused(refused.kind, refused.message))
            member.connection.close()
        self._drop(epoch, member, refused.rank)

    def refuse_all(self, epoch: Epoch, message: str, kind: str = JoinError.__name__, reason: str = "") -> None:
        """Sends all who wait away, here and at all other switches."""
        if epoch.state is EpochState.OVER:
            return
        message = message[: messages.TEXT_MAX]
        self.chronicle.refused(str(epoch), message, job=epoch.job.name, kind=kind, reason=reason)
        self.counts["joins_refused"] += len(epoch.joined())
        if epoch.uplink is not None:
            epoch.uplink.send(messages.Fail(kind, message))
        self._end(epoch, Event.REFUSED, messages.Refused(kind, message))

    # How a member, or an epoch, ends.

    def _end(
        self, epoch: Epoch, event: Event, farewell: messages.Message | None = None, reporter: object = None
    ) -> None:
        """Frees the slots, hangs up on the parent and on all members, and tells these why, but not the reporter.

        From then on the epoch holds nobody. Its members lead to it until their connections are closed: a circle would
        stay until Python looks for garbage.
        """
        was, epoch.probe = epoch.state, None
        members, epoch.members = epoch.members, []
        uplink, epoch.uplink = epoch.uplink, None
        epoch.on(event)
        self.chronicle.ended(epoch, was, event, getattr(farewell, "message", ""))
        if event is Event.ALL_LEFT:
            self.drain.ended(epoch.job.name)
        if epoch.job.epoch is epoch:
            epoch.job.epoch = None
        if was is EpochState.RUNNING and epoch.slot_first is not None:
            self.starts.remove_job(epoch)
        self.starts.release(epoch)
        if uplink is not None:
            uplink.close()
        for member in members:
            if farewell is not None and member is not reporter:
                member.connection.send(farewell)
            member.connection.close()  # sends what is buffered first

    def free_slots(self, epoch: Epoch) -> None:
        """Frees the slots of a running epoch in which there can be no more sums, as a rank has left. It ends when all
        have."""
        stay = names(sorted(set(range(epoch.world_size)) - epoch.left))
        log.warning("%s: %s left, %s stay: its slots are free again", epoch, names(sorted(epoch.left)), stay)
        self.counts["slots_freed_early"] += 1
        self.starts.remove_job(epoch)
        self.starts.release(epoch)

    def fail(self, epoch: Epoch, failed: messages.Failed, *, reporter: Member | ParentConnection | None = None) -> None:
        """Ends the epoch and tells all members, and the parent, but not the one that said so."""
        if epoch.state is EpochState.OVER:
            return
        self.chronicle.failed(epoch, failed)
        joined = epoch.joined()
        epoch.job.lost = {joined[rank].instance for rank in failed.ranks if rank in joined}
        self.counts["epochs_failed"] += 1
        if epoch.uplink is not None and reporter is not epoch.uplink:
            epoch.uplink.send(messages.Fail(failed.kind, failed.message, failed.ranks))
        self._end(epoch, Event.FAILED, failed, reporter)

    def _drop(self, epoch: Epoch, member: Member, rank: int) -> None:
        """Lets another host have this rank."""
        del member.ranks[rank], member.join_until[rank]
        epoch.gone.add(rank)
        if epoch.uplink is not None:
            # Though it may have been the parent that refused it: the rank may have joined anew since it said so.
            epoch.uplink.send(messages.RankGone(rank))
        if not member.ranks:
            epoch.members.remove(member)
            member.epoch, member.alone_since = None, self._outside.now()
        if epoch.state is EpochState.PREPARING:
            self.starts.step_back(epoch)
        if not epoch.members:
            self._end(epoch, Event.LAST_GONE)
        self._prepare_announced(epoch)

    def gone(self, epoch: Epoch, member: Member, rank: int, reason: str, likely: str = CRASHED) -> None:
        """One rank is gone: that ends a running epoch, and lets another host take it in one that forms."""
        if epoch.state in (EpochState.FORMING, EpochState.PREPARING):
            log.debug("%s: rank %d %s", epoch, rank, reason)
            self._drop(epoch, member, rank)
            if not member.rack:
                member.connection.close()
        elif epoch.state is EpochState.RUNNING and rank not in epoch.left:
            self._fail_lost(epoch, epoch.who([rank]), reason, likely, [rank])

    def lose(self, epoch: Epoch, member: Member, reason: str, likely: str = CRASHED) -> None:
        """A member is gone, with all of its ranks. `likely`: why, for people."""
        if epoch.state in (EpochState.FORMING, EpochState.PREPARING):
            for rank in sorted(member.ranks):
                self.gone(epoch, member, rank, reason, likely)
            member.connection.close()
        elif epoch.state is EpochState.RUNNING and (remaining := member.remaining()):
            who = str(member) if member.rack else epoch.who(remaining)
            self._fail_lost(epoch, who, reason, likely, remaining)

    def _fail_lost(self, epoch: Epoch, who: str, reason: str, likely: str, ranks: Collection[int]) -> None:
        text = (
            f"{who[0].upper()}{who[1:]} {reason} ({epoch}, world size {epoch.world_size}). {likely}: look at its log. "
        )
        text += "Then call jax_passing.init again on every host."
        self.fail(epoch, messages.Failed(HostLostError.__name__, text, tuple(ranks)))

    def leave(self, epoch: Epoch, left: messages.Left, source: Member | ParentConnection) -> None:
        """Is a barrier: the epoch ends well when all ranks of the job have left. The other hosts hear of the first that
        does: from then on no further sum can be completed."""
        tells_hosts = not epoch.left and left.sums is not None
        epoch.left_since = epoch.left_since if epoch.left else self._outside.now()
        epoch.left.update(left.ranks)
        log.debug("%s: %s left", epoch, names(sorted(left.ranks)))
        for member in epoch.members:
            if member is not source and (member.rack or tells_hosts):
                member.connection.send(left)
        if epoch.uplink is None:
            if len(epoch.left) == epoch.world_size:
                self.finish(epoch)
        elif source is not epoch.uplink:
            epoch.uplink.send(left)

    def finish(self, epoch: Epoch) -> None:
        self._end(epoch, Event.ALL_LEFT, messages.Bye())

    # The parent says this.

    def prepare(self, epoch: Epoch, prepare: messages.Prepare) -> None:
        if epoch.state is EpochState.RUNNING:
            return
        if epoch.state is EpochState.PREPARING:
            self.starts.step_back(epoch)
        epoch.announced = prepare
        self._prepare_announced(epoch)

    def _prepare_announced(self, epoch: Epoch) -> None:
        """Prepares once the parent counts on the ranks that are here, and no others.

        Until then a rank has come or gone while Prepare was under way: the parent is about to refuse the one, or to
        prepare anew without the other. If we went ahead, one might contribute whom the parent has refused.
        """
        announced = epoch.announced
        if (
            announced is not None
            and epoch.state is EpochState.FORMING
            and set(announced.ranks) == epoch.joined().keys()
        ):
            epoch.announced = None
            self.starts.prepare(epoch, announced)

    def welcome(self, epoch: Epoch, welcome: messages.Welcome) -> None:
        # Else a rank went away meanwhile: the parent was told, and will say that the epoch failed.
        if epoch.state is EpochState.PREPARING:
            self.starts.start(epoch, welcome)

    def parent_lost(self, epoch: Epoch, reason: str) -> None:
        """Ends a running epoch; while one forms, the parent may come back."""
        assert epoch.uplink is not None
        epoch.announced = None
        if epoch.state is EpochState.PREPARING:
            self.starts.step_back(epoch)
        elif epoch.state is EpochState.RUNNING:
            message = (
                f"The switch at {epoch.own_name} lost its parent, the switch at {epoch.uplink.name} ({epoch}): "
                f"{reason}. Look at its log, restart it if it died, then call jax_passing.init again on every host."
            )[: messages.TEXT_MAX]
            self.fail(epoch, messages.Failed(SwitchLostError.__name__, message), reporter=epoch.uplink)

    def relay(self, epoch: Epoch, relay: messages.Relay, source: Member | ParentConnection) -> None:
        """Hands what rank 0 says to everybody else, and to rank 0, or towards it, what others say."""
        uplink = epoch.uplink
        towards_rank_0 = next((member for member in epoch.members if 0 in member.ranks), uplink)

        def is_meant(peer: Member | ParentConnection) -> bool:
            return peer is not source if source is towards_rank_0 else peer is towards_rank_0

        for member in list(epoch.members):
            if epoch.state is not EpochState.RUNNING:
                return
            if is_meant(member) and member.remaining() and not member.connection.send(relay):
                self.lose(epoch, member, "stopped reading what other hosts send", STANDS_STILL)
        if uplink is not None and is_meant(uplink) and not uplink.send(relay):
            self.parent_lost(epoch, "it stopped reading what hosts send")
