"""The simulator must find these bugs of the control plane and of hosts; plants.cmake has those of the C++ core."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path


def _never_counts_epochs() -> None:
    from jax_passing.switch.jobs.jobs import JobTable

    true = JobTable._epoch_to_join

    def patched(self, *arguments):
        self._numbers._epoch_count = Counter()
        return true(self, *arguments)

    JobTable._epoch_to_join = patched


def _loses_leaves() -> None:
    from jax_passing.protocol import control_messages as messages
    from jax_passing.switch.tree.uplink import Uplink

    true = Uplink.send
    Uplink.send = lambda self, message: isinstance(message, messages.Left) or true(self, message)


def _keeps_slots() -> None:
    from jax_passing.switch.jobs.epoch_start import EpochStart

    def patched(self, epoch):
        epoch.slot_first = None

    EpochStart.release = patched


def _keeps_jobs() -> None:
    from simulation.switches import SimulatedDataPlane

    SimulatedDataPlane.remove_job = lambda self, job: None


def _tells_all_but_one() -> None:
    from jax_passing.switch.jobs.jobs import JobTable

    true = JobTable.fail

    def patched(self, epoch, failed, *, reporter=None):
        if len(epoch.members) > 1:
            epoch.members.pop()
        true(self, epoch, failed, reporter=reporter)

    JobTable.fail = patched


def _has_no_leases() -> None:
    from jax_passing.switch.server.member_conversation import MemberConversation

    MemberConversation._on_lease_over = lambda self: None


def _waits_for_the_dead() -> None:
    from jax_passing.switch.server.member_conversation import MemberConversation

    true = MemberConversation._on_lease_over

    def patched(self):
        if self._member is None or self._member.has_started:
            true(self)

    MemberConversation._on_lease_over = patched


def _counts_while_it_stands_still() -> None:
    from jax_passing.protocol import lease

    lease.LATE_LOOKS = float("inf")


def _waits_for_ever() -> None:
    from jax_passing.switch.jobs import watch

    watch.end_waits = lambda jobs, epoch, now: None


def _keeps_keys() -> None:
    from jax_passing.protocol.keys import KEY_BYTES
    from jax_passing.switch.jobs.epoch_start import EpochStart, Secrets

    def patched(self, worker_count):
        return Secrets([bytes([worker]) * KEY_BYTES for worker in range(worker_count)], bytes(KEY_BYTES))

    EpochStart._new_secrets = patched


def _admits_strangers() -> None:
    from jax_passing.switch.server.member_conversation import MemberConversation

    MemberConversation._check_key = lambda self, join: None


def _hosts_are_silent() -> None:
    from jax_passing.host.control.contact import Contact

    Contact._beat = lambda self: None


def _hosts_hang_up_without_a_word() -> None:
    from jax_passing.host.control.membership import Membership

    Membership._tell = lambda self, failure, source: None


def _looks_for_no_lost_sums() -> None:
    from jax_passing.host.control.membership import Membership

    Membership._look_beyond = lambda self, left: None


def _waits_for_rehearsals() -> None:
    from jax_passing.switch.meetings.meetings import Meeting

    true = Meeting._rehearse

    def patched(self, seat, world_size):
        true(self, seat, world_size)
        seat.is_rehearsing, seat.meeting = False, self._last

    Meeting._rehearse = patched


def _takes_who_must_compile() -> None:
    from jax_passing.switch.meetings.meetings import Meeting

    Meeting._ready = lambda self, waiting: None


def _compares_no_newcomer() -> None:
    from jax_passing.switch.meetings.meetings import Meeting

    Meeting._refuse_unlike = lambda self, epoch_stands: None


def _blames_all() -> None:
    from jax_passing.host.control import blame

    blame.as_found = lambda failure, rank, context, in_sums=False: failure


def _takes_a_silent_switch_for_one_that_answers() -> None:
    from jax_passing.protocol.caller import Alive, Caller

    Caller.prove = lambda self, within_s: self._report(Alive())


def _waits_for_a_dark_switch_each_time() -> None:
    from jax_passing.host.control import meeting_point
    from jax_passing.protocol.caller import CONNECT_TIMEOUT_S

    meeting_point.ANSWER_S = meeting_point.DARK_ANSWER_S = CONNECT_TIMEOUT_S


def _hosts_say_that_they_live_when_they_are_ready() -> None:
    from jax_passing.host.control.meeting import Meeting

    Meeting.attend = lambda self, lost: None


def _waits_for_who_never_came() -> None:
    from jax_passing.switch.meetings import absence

    absence.GRACE_S = float("inf")


def _lets_anybody_go_on() -> None:
    from dataclasses import replace

    from jax_passing.switch.meetings import meetings

    true = meetings.parties_of
    meetings.parties_of = lambda waiting, held: replace(true(waiting, held), quorum=0)


IN_PYTHON: dict[str, Callable[[], None]] = {
    "an epoch's number twice": _never_counts_epochs,
    "a rack's leave is lost": _loses_leaves,
    "slots stay reserved": _keeps_slots,
    "the slot pool keeps jobs that are over": _keeps_jobs,
    "a member isn't told of a failure": _tells_all_but_one,
    "leases aren't checked": _has_no_leases,
    "who waits to join has no lease": _waits_for_the_dead,
    "silence counts while one stands still": _counts_while_it_stands_still,
    "join deadlines aren't checked": _waits_for_ever,
    "keys of packets are drawn once": _keeps_keys,
    "whoever proves no key may join": _admits_strangers,
    "a host doesn't say that it lives": _hosts_are_silent,
    "a host doesn't say why it hangs up": _hosts_hang_up_without_a_word,
    "a host doesn't look for sums that can't be completed": _looks_for_no_lost_sums,
}

IN_TRAININGS: dict[str, Callable[[], None]] = {
    "a meeting waits for hosts that compile": _waits_for_rehearsals,
    "a meeting takes hosts that have to compile": _takes_who_must_compile,
    "a newcomer isn't compared with those that run the job": _compares_no_newcomer,
    "a newcomer's program is everybody's fault": _blames_all,
    "a silent switch with which a host is connected counts as one that answers": (
        _takes_a_silent_switch_for_one_that_answers
    ),
    "each meeting waits for a dark switch": _waits_for_a_dark_switch_each_time,
    "a host that is busy doesn't say that it lives": _hosts_say_that_they_live_when_they_are_ready,
    "a standby waits for hosts that never came": _waits_for_who_never_came,
    "meetings have no quorum": _lets_anybody_go_on,
}
"""The elastic trainings find these."""


def all_of(build: Path) -> dict[str, Callable[[], None]]:
    """Returns functions that plant a defect each, in a process that hasn't imported anything of the product yet."""
    plants = dict(IN_PYTHON)
    for module in sorted(build.glob("plants/*/_simulation*.so")):
        folder = str(module.parent)
        plants[module.parent.name.replace("_", " ")] = lambda folder=folder: sys.path.insert(0, folder)
    return plants
