"""Whatever a member of a job says, a host or a rack's switch, goes from here to whom in the switch it is for.

What it sends is never trusted: a message that makes no sense raises msgspec.DecodeError, which costs it its connection.
"""

from collections.abc import Callable

import msgspec

from jax_passing import job_names
from jax_passing.config import RANKS_MAX
from jax_passing.errors import is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.admission import Abilities, RefusalError, rank_of_rack
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch, Member
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.jobs.waits import whom_it_awaits
from jax_passing.switch.status.report import Report
from jax_passing.switch.tree.questions import Questions

INQUIRIES_MAX = 2 * RANKS_MAX  # of one member at once: a rack's switch asks for each of its hosts


class Dispatcher:
    """Dispatches the messages of all members. `abilities`: asked when a rank joins through its rack's switch."""

    def __init__(
        self,
        data_plane: DataPlane,
        jobs: JobTable,
        questions: Questions,
        abilities: Callable[[], Abilities],
        report: Report,
    ):
        self._data_plane = data_plane
        self._jobs, self._starts = jobs, jobs.starts
        self._questions = questions
        self._abilities = abilities
        self._report = report

    def dispatch(self, job: str, member: Member, line: bytes) -> None:
        message = messages.decode_from_member(line)
        if len(line) > messages.LINE_BYTES_MAX and not isinstance(message, messages.Relay):
            raise msgspec.DecodeError(f"{type(message).__name__} is too long")
        epoch = member.epoch
        match message:
            case messages.Heartbeat():
                member.answer(message)
            case messages.RankJoin() if member.rack:
                self._on_rank(job, member, message)
            case messages.Refused() if member.rack:
                self._jobs.refused(job, message.message)
            case messages.Answer() if member.rack:
                self._questions.on_answer(member.connection, message)
            case _ if epoch is not None and member.rack:
                self._on_rack(epoch, member, message)
            case _ if epoch is not None:
                self._on_host(epoch, member, message)
            case messages.RankGone() | messages.Prepared() | messages.GroupReady() | messages.GroupHeard():
                pass  # about ranks that were refused meanwhile
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} before any rank joined")

    def _on_rank(self, job: str, member: Member, join: messages.RankJoin) -> None:
        if member.epoch is not None and join.rank in member.ranks:
            raise msgspec.DecodeError(f"rank {join.rank} joins twice")
        try:
            self._jobs.admit(job, rank_of_rack(join, self._abilities()), member)
        except RefusalError as refusal:
            member.refusal_count += 1
            if member.refusal_count > RANKS_MAX:  # each of them is logged
                raise msgspec.DecodeError(f"more than {RANKS_MAX} ranks were refused") from refusal
            who = f"rank {join.rank} of job {job!r} ({member.rack})"
            self._jobs.chronicle.refused(who, str(refusal), job=job, kind=refusal.kind, reason=refusal.reason)
            self._jobs.refused(job, str(refusal))
            member.answer(messages.Refused(refusal.kind, str(refusal), join.rank))

    def _on_host(self, epoch: Epoch, member: Member, message: messages.FromMember) -> None:
        match message:
            case messages.Query(slot, _, sum_name, plane) if epoch.state is EpochState.RUNNING:
                if slot is None or epoch.slot_first is None:
                    who = ""
                    if sum_name:  # it waits for rank 0, which decides the order
                        self._questions.tell_awaited(epoch, [0], member, sum_name)
                        who = epoch.where([0])
                    member.answer(messages.SlotState(left=tuple(sorted(epoch.left)), who=who))
                else:
                    if not epoch.has_slot(slot, plane):
                        raise msgspec.DecodeError(f"slot {slot} isn't the job's")
                    self._check_inquiries(member)
                    self._questions.slot_state(epoch, message, member)
            case messages.Query() if epoch.state is EpochState.FORMING:
                member.answer(messages.SlotState(left=(), trouble=whom_it_awaits(epoch)))
            case messages.Query():
                pass  # it has asked for whom it waits, and all have come meanwhile
            case messages.CountersQuery() if epoch.state is EpochState.RUNNING:
                member.answer(messages.Counters(dict(self._data_plane.stats())))
            case messages.StatusQuery():
                member.answer(self._report.answer(message, job_names.base(epoch.job.name)))
            case messages.Leave(sums) if epoch.state is EpochState.RUNNING:
                self._jobs.leave(epoch, messages.Left((member.rank,), sums, epoch.who([member.rank])), member)
            case messages.Fail(kind, text, ranks):
                by = f" (Reported by {epoch.who([member.rank])}.)"
                reported = text[: messages.TEXT_MAX - len(by)] + by
                self._on_fail(epoch, member, messages.Failed(kind, reported, ranks))
            case _:
                self._on_member(epoch, member, message)

    def _on_rack(self, epoch: Epoch, member: Member, message: messages.FromMember) -> None:
        match message:
            case messages.RankGone(rank):
                if rank in member.ranks:  # else it was refused meanwhile
                    self._jobs.gone(epoch, member, rank, "closed its connection")
            case messages.Prepared(attempt):
                self._starts.prepared(epoch, member, attempt)
            case messages.Ask() if epoch.state is EpochState.RUNNING:
                self._check_inquiries(member)
                self._questions.answer(epoch, message, member, member.inquiries, member.answer)
            case messages.Left(ranks) if epoch.state is EpochState.RUNNING and member.ranks.keys() >= set(ranks):
                self._jobs.leave(epoch, message, member)
            case messages.Fail(kind, text) if epoch.state is EpochState.PREPARING and is_kind(kind):
                self._jobs.refuse_all(epoch, text, kind)
            case messages.Fail(kind, text, ranks):
                self._on_fail(epoch, member, messages.Failed(kind, text, ranks))
            case _:
                self._on_member(epoch, member, message)

    def _on_member(self, epoch: Epoch, member: Member, message: messages.FromMember) -> None:
        match message:
            case messages.Relay(payload) if epoch.state is EpochState.RUNNING and (
                0 in member.ranks or payload.startswith(messages.RELAYED_ORDER)
            ):
                self._jobs.relay(epoch, message, member)
            case messages.GroupReady() | messages.GroupHeard():
                self._starts.group_answer(epoch, member, message)
            case messages.GroupLost() if epoch.state is EpochState.RUNNING:
                self._starts.group_lost(epoch, member)
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from {member}, {epoch.state.value}")

    def _on_fail(self, epoch: Epoch, member: Member, failed: messages.Failed) -> None:
        if not is_kind(failed.kind) or any(rank >= epoch.world_size for rank in failed.ranks):
            raise msgspec.DecodeError("Fail with an unknown kind or rank")
        if epoch.state is EpochState.RUNNING:
            self._jobs.fail(epoch, failed, reporter=member)

    def _check_inquiries(self, member: Member) -> None:
        if len(member.inquiries) >= INQUIRIES_MAX:
            raise msgspec.DecodeError("too many questions at once")
