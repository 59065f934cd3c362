"""Messages about a sum that makes no progress, and about a join: who is missing, where, for how long."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jax_passing.errors import Failure, HostLostError, names
from jax_passing.protocol.control_messages import Awaited, Left, Query, SlotState
from jax_passing.protocol.outside import Outside, Timer

if TYPE_CHECKING:
    from jax_passing._native import Stall

log = logging.getLogger("jax_passing")

_SAME_NUMBER = "All hosts must run the same number of steps before shutdown."
ANSWER_S = 1.0  # to a question; a switch has less patience with the others that it asks
SUM_NAME_CHARACTERS_MAX = 200  # of a message
AWAITED_AGAIN_S = 30.0
_GO_ON = "Call session.rejoin on every other host, to go on without it."


class Explanation(NamedTuple):
    """A sentence says whom a sum waits for. `gone`: those of them that have left the job."""

    text: str
    missing: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()


def explain(stall: "Stall", state: SlotState | None, rank: int, switch: str, data: str) -> Explanation:
    """Returns whom the sum waits for.

    Args:
      stall: the oldest unfinished sum of this host.
      state: what the switch said about its slot; None if nothing.
      rank: this host's.
      switch: where that slot is.
      data: where its packets go.
    """
    if stall.waits_for_gpu:
        return Explanation("It waits for this host's own GPU, which hasn't delivered what is to be sent next.", (rank,))
    if state is None:
        return Explanation(f"The switch at {switch} doesn't answer questions about it.")
    if stall.waits_for_order and rank == 0:
        return Explanation("It waits for another host, which hasn't come to it.")
    if stall.waits_for_order:
        missing: tuple[int, ...] = (0,)
        text = f"It waits for {state.who or 'rank 0'}, which decides the order of sums and hasn't started this one."
    elif state.empty and state.trouble:
        missing = ()
        text = state.trouble
    elif state.empty or state.sequence != stall.sequence:
        missing = state.missing
        text = f"The switch at {switch} has this chunk from no rank, not even this one: does UDP reach {data}?"
    elif state.complete:
        missing = ()
        text = (
            f"The switch at {switch} has it from all ranks, but its answers don't arrive: does UDP from {data} "
            "reach us?"
        )
    else:
        missing = state.missing
        text = f"Missing: {state.who or names(missing)}." if missing else ""
        if missing == (rank,):
            text += f" That is this one: does UDP reach {data}?"
        text = " ".join(filter(None, (text, state.trouble))) or "Nobody is missing any more."
    gone = tuple(sorted(set(missing) & set(state.left)))
    return Explanation(text + (f" Of these, {names(gone)} left the job." if gone else ""), missing, gone)


def question(stall: "Stall", planes: int = 1) -> Query:
    """Makes what the stall's switch is asked. `planes`: that the job uses of each switch."""
    name = stall.site_name[:SUM_NAME_CHARACTERS_MAX]
    plane = stall.shard % planes
    return Query(stall.slot, stall.version, name, plane) if _has_slot(stall) else Query(sum=name)


def _has_slot(stall: "Stall") -> bool:
    return not (stall.waits_for_gpu or stall.waits_for_order)


class Wait:
    """A host waits for the others, until all have joined or met at a switch. This asks for whom, and warns: after
    `warn_s`, then ever more rarely."""

    def __init__(
        self, outside: Outside, send: Callable[[Query], object], who: str, switch: str, deadline_s: float, warn_s: float
    ):
        """`send`: asks the switch, at this address. `who` waits there, for at most `deadline_s`."""
        self._outside, self._send = outside, send
        self._who, self._switch, self._deadline_s = who, switch, deadline_s
        self._began = outside.now()
        self._timer = outside.call_later(warn_s, self._ask)

    def _ask(self) -> None:
        self._timer = self._outside.call_later(max(0.5, self._waited_s), self._ask)
        self._send(Query())

    @property
    def _waited_s(self) -> float:
        return self._outside.now() - self._began

    def warn(self, answer: SlotState) -> None:
        log.warning(
            "%s has waited %.1f s for other hosts at the switch at %s, and waits for at most %.0f s more. %s",
            self._who,
            self._waited_s,
            self._switch,
            max(0.0, self._deadline_s - self._waited_s),
            answer.trouble,
        )

    def stop(self) -> None:
        self._timer.cancel()


class Note(Protocol):
    def __call__(self, text: str, **facts: Any) -> None: ...


class StallReporter:
    """Asks the switches about stalls, says what they answer, and warns: at once, then ever more rarely."""

    def __init__(
        self,
        outside: Outside,
        *,
        rank: int,
        epoch: int,
        switches: Sequence[str],
        data: Sequence[str],
        ask: Callable[[int, Query], None],
        told: Callable[[str, Failure | None], None],
        programs: Callable[[], str],
        is_elastic: bool = False,
        note: Note,
    ):
        """
        Args:
          switches: their addresses.
          data: where the packets of each shard go. All switches have as many shards, one for each plane.
          ask: sends a question to one of them, by its index.
          told: takes a note for the error at the deadline, and a failure if the wait is in vain.
          programs: says which ones not all hosts run.
          note: is told of each stall.
        """
        self._outside, self._ask, self._told, self._planes = outside, ask, told, len(data) // len(switches)
        self._asked: tuple[Stall, float] | None = None
        self._patience: Timer | None = None
        self._note = note
        self._advice = _GO_ON if is_elastic else _SAME_NUMBER
        self._rank = rank
        self._epoch = epoch
        self._switches, self._data = switches, data
        self._programs = programs
        self._about: tuple[object, ...] = ()
        self._next_warning_s = self._awaited_next = 0.0
        self._awaited_in = ""

    def ask(self, stall: "Stall", stalled_s: float) -> None:
        """Asks the stall's switch about it, unless a question is open."""
        if self._asked is None:
            self._asked = stall, stalled_s
            self._patience = self._outside.call_later(ANSWER_S, lambda: self._on_answer(None))
            self._ask(stall.shard // self._planes, question(stall, self._planes))

    def answer(self, switch: int, state: SlotState) -> None:
        """Takes what a switch says. One that comes too late means nothing."""
        if self._asked is not None and self._asked[0].shard // self._planes == switch:
            self._on_answer(state)

    def _on_answer(self, state: SlotState | None) -> None:
        """Takes what the switch says of the stall; None: nothing."""
        assert self._asked is not None
        (stall, stalled_s), self._asked = self._asked, None
        self.stop()
        self._told(*self.report(stall, stalled_s, state))

    def stop(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def report(self, stall: "Stall", stalled_s: float, state: SlotState | None) -> tuple[str, Failure | None]:
        """Returns a note for the error at the deadline, and a failure if the wait is in vain. May log.

        `state`: what the stall's switch answered to `question`; None if nothing.
        """
        switch = self._switches[stall.shard // self._planes]
        text, missing, gone = explain(stall, state, self._rank, switch, self._data[stall.shard])
        note = f"{text} {self._programs()}".rstrip()
        where = f"epoch {self._epoch}"
        if _has_slot(stall):
            where = f"slot {stall.slot}, version {stall.version}, sequence {stall.sequence} of {switch}, {where}"
        sum_text = f"{stall.site_name} (execution {stall.execution}, step {stall.step}; {where})"
        about = (stall.site_name, stall.execution, stall.step, stall.sequence)
        if about != self._about or stalled_s >= self._next_warning_s:
            self._about, self._next_warning_s = about, 2 * stalled_s
            log.warning("rank %d has waited %.1f s for %s. %s", self._rank, stalled_s, sum_text, note)
            where_at = {"site_name": stall.site_name, "execution": stall.execution, "step": stall.step}
            self._note(note, **where_at, missing=list(missing), waited_s=stalled_s)
        if not gone:
            return note, None
        return note, Failure(
            HostLostError.__name__,
            f"Rank {self._rank} waits for {sum_text}, but {names(gone)} left the job without it. {self._advice}",
            gone,
        )

    def awaited(self, by: Awaited, now: float) -> None:
        """Another host waits for this one. Warns, at first and then ever so often."""
        if by.sum == self._awaited_in and now < self._awaited_next:
            return
        self._awaited_in, self._awaited_next = by.sum, now + AWAITED_AGAIN_S
        text = f"{by.who} waits for rank {self._rank}, this host, in {by.sum or 'a sum'}"
        log.warning("%s: this host hasn't come to it, or its packets don't arrive at the switch.", text)
        self._note(text, site_name=by.sum, missing=[self._rank])

    def left_behind(self, left: Left) -> Failure:
        """Makes the failure of a host that has started more sums than ranks that have left."""
        return Failure(
            HostLostError.__name__,
            f"Rank {self._rank} needs another sum (epoch {self._epoch}), but {left.who or names(left.ranks)} left the "
            f"job after {left.sums} of them. {self._advice}",
            left.ranks,
        )
