"""The hosts of a job meet here before they join, and agree who goes on, as which rank, after which step
(docs/train/elastic.md).

A host's connection is its *seat*, which it keeps as long as its session lasts. So a host with a seat is known to live,
and is waited for. The root of a tree decides; a switch below it hands on what either side says.
"""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from jax_passing.config import RANKS_MAX
from jax_passing.errors import ConfigError, HostJoinedError, HostLostError, JoinError, TooFewHostsError
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Connection, Outside, Timer
from jax_passing.switch.jobs.admission import RefusalError, check_path
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.meetings.absence import away, may_come
from jax_passing.switch.meetings.interruptions import interruption_of
from jax_passing.switch.meetings.parties import Parties, newcomers_of, parties_of
from jax_passing.switch.meetings.rack_seats import SeatsOfRack
from jax_passing.switch.meetings.seats import HostSeat, Refuse, Seat, ToHost
from jax_passing.switch.meetings.seats_at_parent import SeatsAtParent
from jax_passing.switch.meetings.why_not import SAME_WAY, why_not

log = logging.getLogger("jax_passing.switch")

LOOK_S = 0.05  # the time between two looks at hosts that wait
STANDBY_GRACE_S = 1.0  # a standby gives hosts this time to meet at the switch that goes before it
SEATS_MAX = 2 * RANKS_MAX  # a job may have as many hosts that wait to get in as hosts that run


class Meetings:
    """These are the meetings of all jobs of a switch, `by_job`."""

    def __init__(
        self,
        jobs: JobTable,
        outside: Outside,
        parent: tuple[str, int] | None,
        instance: str,
        key_of: Callable[[str], bytes | None],
    ):
        """`parent`: the switch at which hosts really meet, if this one isn't the root. `instance`: tells this switch
        from any other. `key_of`: returns the key of a job, if this switch has one."""
        self._jobs = jobs
        self._outside = outside
        self._parent = parent
        self._instance = instance
        self._key_of = key_of
        self.by_job: dict[str, Meeting] = {}
        self._at_parent: dict[str, SeatsAtParent] = {}
        self._seats_of_racks: Counter[str] = Counter()  # by the address of the rack's switch
        jobs.check_met = self._check_met

    def seat(self, job: str, connection: Connection, is_racks: bool) -> Seat:
        """Makes a seat for the host at the other end, or seats for all hosts of the rack whose switch is there. Raises
        RefusalError."""
        if is_racks:
            return SeatsOfRack(connection, partial(self._seat, job), self._refuse, self._seats_of_racks)
        return self._seat(job, connection, ())

    def _seat(self, job: str, host: ToHost, path: tuple[str, ...]) -> Seat:
        """Makes a host's seat. `path`: the instances of the switches on its way. Raises RefusalError."""
        check_path(path, self._instance)
        self._jobs.drain.check(job)
        if self._parent is not None:
            if job not in self._at_parent:
                self._at_parent[job] = SeatsAtParent(
                    self._outside, self._parent, host.own_name, job, self._key_of(job), self._at_parent.pop
                )
            return self._at_parent[job].seat(host, (*path, self._instance))
        if job not in self.by_job:
            self.by_job[job] = Meeting(job, self._jobs, self._outside, self._refuse, self._forget)
        meeting = self.by_job[job]
        return HostSeat(host, job, meeting.wait, meeting.leave, meeting.why_not)

    def _check_met(self, join: messages.RankJoin, job: str) -> None:
        """Raises RefusalError if a host may not join a job now."""
        if job in self.by_job:
            self.by_job[job].check_met(join)

    def _refuse(self, host: ToHost, job: str, text: str, kind: str) -> None:
        self._jobs.counts["joins_refused"] += 1
        self._jobs.chronicle.refused(f"a host at {host.host} that meets those of job {job!r}", text, job=job, kind=kind)
        host.send(messages.Refused(kind, text[: messages.TEXT_MAX]))
        host.close()

    def jobs(self) -> set[str]:
        """Returns the names of the jobs whose hosts have seats here."""
        return {*self.by_job, *self._at_parent}

    def end(self, job: str, text: str, kind: str) -> None:
        """Sends the hosts of a job away that wait to meet, with this text and kind of error."""
        if (meeting := self.by_job.get(job)) is not None:
            meeting.end(text, kind)
        if (at_parent := self._at_parent.get(job)) is not None:
            at_parent.end(text, kind)

    def _forget(self, meeting: "Meeting") -> None:
        """Forgets a job in which nobody has a seat any more. Hosts that come back know the number of their last
        meeting, so we needn't."""
        if self.by_job.get(meeting.job) is meeting:
            del self.by_job[meeting.job]

    def held(self) -> dict[str, int]:
        """Returns how much it holds, by what it is."""
        return {
            "meetings": len(self.by_job),
            "jobs whose hosts meet at the parent": len(self._at_parent),
            "seats of racks": self._seats_of_racks.total(),
        }

    def stop(self) -> None:
        """Ends all that happens by itself."""
        for meeting in self.by_job.values():
            meeting.stop()


class Meeting:
    """A meeting has the seats of one job. It decides when their hosts meet, and which of them."""

    def __init__(self, job: str, jobs: JobTable, outside: Outside, refuse: Refuse, forget: Callable[["Meeting"], None]):
        """`refuse`: sends a host away. `forget`: called when nobody has a seat any more."""
        self.job = job
        self._jobs = jobs
        self._outside = outside
        self._refuse = refuse
        self._forget = forget
        # The meetings that were held here, with how many hosts. Who comes next was in the last one, or in an earlier
        # one if not all have joined after the last.
        known = jobs.of(job)
        self._held: dict[int, int] = {} if known is None else dict(known.held)
        self._seats: list[HostSeat] = []
        self._met: set[str] = set()  # the instances of the hosts that met last
        self._is_incomplete = False  # whether one of these is gone, while the others may be joining already
        self._timer: Timer | None = None

    @property
    def waiting(self) -> list[HostSeat]:
        return [seat for seat in self._seats if seat.said is not None]

    # Hosts do this.

    def wait(self, seat: HostSeat, said: messages.Meet) -> None:
        if seat not in self._seats:
            if len(self._seats) >= SEATS_MAX:
                text = f"Job {self.job!r} has {SEATS_MAX} hosts that wait or run already."
                self._refuse(seat.connection, self.job, text, JoinError.__name__)
                return
            self._seats.append(seat)
            seat.came = self._outside.now()
        seat.asks(said, self._outside.now())
        for other in [other for other in self._seats if other is not seat and other.instance == seat.instance]:
            self._seats.remove(other)  # the same process: it gave an old connection up
            other.connection.close()
        self._look()

    def leave(self, seat: HostSeat) -> None:
        if seat in self._seats:
            self._seats.remove(seat)
            self._is_incomplete |= seat.said is None and seat.instance in self._met
        if self._seats:
            self._look()
        else:
            self._end()

    def _end(self) -> None:
        self.stop()
        if (job := self._jobs.of(self.job)) is not None:
            job.held = self._held
        self._forget(self)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # This comes of it.

    def _look(self) -> None:
        """Does what is due, and looks again after a while if anybody waits, or joins in vain."""
        self.stop()
        job = self._jobs.of(self.job)
        if job is not None and self._met and job.began == self._met:
            self._held = {self._last: len(self._met)}  # its hosts know by now that it wasn't in vain
        epoch = None if job is None else job.epoch
        stands = epoch is not None and epoch.state is not EpochState.OVER
        self._refuse_unlike(stands)
        if epoch is not None and stands:
            self._look_at(epoch)
        waiting = self.waiting
        now = self._outside.now()  # once: whose time is over now goes on if it can, and only else in vain
        if waiting and (epoch is None or epoch.state is EpochState.OVER):  # perhaps by this look
            self._hold(waiting, set() if job is None else job.lost, now)
        self._end_waits(now)
        if self._seats and (self._is_incomplete or any(seat.said is not None for seat in self._seats)):
            self._timer = self._outside.call_later(LOOK_S, self._look)

    def _refuse_unlike(self, epoch_stands: bool) -> None:
        """Sends newcomers away, and nobody else, that aren't like the hosts that run the job. When hosts first meet
        nobody knows who is right: they hear of it together when they join."""
        new, old = newcomers_of(self._seats, self._met, self._held, epoch_stands)
        if not old or any(seat.alike != old[0].alike for seat in old):
            return
        for seat in new:
            if text := alike.difference_of_newcomer(self.job, seat.alike, old[0].alike):
                self._seats.remove(seat)
                self._refuse(seat.connection, self.job, text, ConfigError.__name__)

    def check_met(self, join: messages.RankJoin) -> None:
        """Raises RefusalError if a host joins that hasn't met those that run the job. They are about to join again,
        perhaps, and it would be in their way."""
        if join.instance not in self._met and any(seat.instance in self._met for seat in self._seats):
            text = f"The hosts of job {self.job!r} meet before they join, and this one hasn't. {SAME_WAY}"
            raise RefusalError(text)

    def _look_at(self, epoch: Epoch) -> None:
        """Ends an epoch that stands in the way: while it forms or runs nobody can meet."""
        if epoch.state is not EpochState.RUNNING:
            back = any(seat.said is not None and seat.instance in self._met for seat in self._seats)
            if (self._is_incomplete or back) and self._is_ours(epoch):
                text = f"Not all hosts that had met have joined {epoch}: one of them is gone."
                self._jobs.refuse_all(epoch, text, HostLostError.__name__)
            elif not self._is_ours(epoch) and any(seat.said is not None and seat.said.meeting for seat in self._seats):
                self._jobs.refuse_all(epoch, f"The hosts of job {self.job!r} have met before. {SAME_WAY}")
            return
        self._is_incomplete = False  # whose host it was, its lease says
        if not self._is_ours(epoch):
            return
        inside = {join.instance for join in epoch.joined().values()}
        for seat in self._seats:
            if seat.said is None:
                continue
            if seat.instance in inside:
                text = f"R{seat.who[1:]} of {epoch} wants all hosts to meet again."
            elif seat.said.rehearses and seat.said.world_size > 1:
                self._rehearse(seat, min(epoch.world_size + 1, seat.said.world_size))
                continue
            elif epoch.world_size < seat.said.world_size:
                text = f"A host at {seat.connection.host} wants to join {epoch}, which has {epoch.world_size} hosts."
            else:
                continue  # there is no room for it until a host is lost
            text += " Call session.rejoin on every host, which costs at most one step."
            self._jobs.fail(epoch, messages.Failed(HostJoinedError.__name__, text))
            return

    def _rehearse(self, seat: HostSeat, world_size: int) -> None:
        log.info("job %r: a host at %s compiles its programs, and comes then", self.job, seat.connection.host)
        seat.said, seat.is_rehearsing = None, True
        seat.connection.send(messages.Rehearse(world_size))

    def _is_ours(self, epoch: Epoch) -> bool:
        """Says whether all who joined this epoch have met here. Otherwise a stranger could end the epoch of a job whose
        hosts don't meet."""
        return all(join.instance in self._met for join in epoch.joined().values())

    @property
    def _last(self) -> int:
        return next(reversed(self._held), 0)

    def _hold(self, waiting: list[HostSeat], lost: set[str], now: float) -> None:
        """Closes the meeting if enough hosts are here, and nobody is left who must be waited for."""
        parties = parties_of(waiting, self._held)
        if (ready := self._ready(waiting)) is not None:
            waiting = [*ready.survivors, *ready.newcomers]
            parties = ready
        own = [seat for seat in waiting if not seat.asked.aside]
        calm = len(own) == len(waiting) or now >= max(seat.since for seat in waiting) + STANDBY_GRACE_S
        if not parties.are_enough or not own or not calm:
            return
        absent = bool(away(self._seats, parties, self._held, lost)) or may_come(
            self._seats, parties, self._held, now, self._jobs.lease_s
        )
        patient = parties.are_patient(now)
        # A newcomer that waits no longer goes by itself: those that run the job wait for each other as they want.
        late = any(now >= seat.since + seat.asked.deadline_s for seat in own if seat in parties.decisive)
        if late or (not absent and not patient):
            self._hang_up_on(lost)
            self._close(parties)

    def _ready(self, waiting: list[HostSeat]) -> Parties | None:
        """Returns the parties without the hosts that haven't compiled their programs, if the others can go on so."""
        ready = [seat for seat in waiting if not seat.asked.rehearses]
        if not ready or len(ready) == len(waiting):
            return None
        parties = parties_of(ready, self._held)
        can_go_on = parties.survivors and parties.are_enough and not parties.are_patient(self._outside.now())
        return parties if can_go_on else None

    def _hang_up_on(self, lost: set[str]) -> None:
        """Takes the seats of hosts that fell silent. Their connections may never end by themselves, and nobody is to
        wait for them when another host is lost. One that is alive after all comes back as a newcomer."""
        for seat in [seat for seat in self._seats if seat.said is None and seat.instance in lost]:
            self._seats.remove(seat)
            seat.connection.close()

    def _close(self, parties: Parties) -> None:
        self._held[self._outside.random_bits(61) + 1] = len(parties.chosen)
        if (job := self._jobs.of(self.job)) is not None:
            job.began = set()
        chosen = parties.chosen
        survivors = min(len(parties.survivors), len(chosen))
        dark = tuple(sorted({switch for seat in chosen for switch in seat.asked.dark}))
        step = min((seat.asked.step or 0 for seat in chosen[:survivors]), default=None)
        ran_until = float("-inf") if job is None else job.ran_until
        if (interruption := interruption_of(parties.survivors, ran_until)) is not None:
            self._jobs.chronicle.recoveries.heard(self.job, interruption)
        self._met = {seat.instance for seat in chosen}
        self._is_incomplete = False
        log.info("job %r: %d hosts have met, %d survivors, step %s", self.job, len(chosen), survivors, step)
        for rank, seat in enumerate(chosen):
            seat.said, seat.rank, seat.meeting = None, rank, self._last
            seat.connection.send(messages.Met(self._last, rank, len(chosen), survivors, step, dark))

    def _end_waits(self, now: float) -> None:
        """Sends those away that have waited in vain for as long as they wanted."""
        late = [seat for seat in self._seats if seat.said and now >= seat.since + seat.said.deadline_s]
        if not late:
            return
        text = self.why_not()
        for seat in late:
            waited = f"within the {seat.asked.deadline_s:.1f} s that rank {seat.rank} waited"
            self._seats.remove(seat)
            why = f"The hosts of job {self.job!r} didn't meet {waited}. {text}"
            self._refuse(seat.connection, self.job, why, TooFewHostsError.__name__)
        if not self._seats:
            self._end()

    def end(self, text: str, kind: str) -> None:
        """Sends the hosts away that wait."""
        for seat in self.waiting:
            self._seats.remove(seat)
            self._refuse(seat.connection, self.job, text, kind)
        if not self._seats:
            self._end()

    def why_not(self) -> str:
        """Says why the hosts that wait don't meet yet."""
        return why_not(self._jobs.of(self.job), self.job, self._seats, self._met, self._held)
