"""A host asks one switch who is missing in a chunk, and all switches of the tree answer, in bounded time."""

import itertools
import logging
from collections.abc import Callable, Sequence

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Connection, Outside
from jax_passing.switch.data_planes.data_plane import DataPlane, SlotVersion, unexpected
from jax_passing.switch.jobs.epochs import Epoch, Inquiry, Member, ParentConnection, StalledChunk

log = logging.getLogger("jax_passing.switch")

PATIENCE_S = 0.8  # a host waits a second for its answer (host/control/membership.py)
AWAITED_S = 1.0  # a host hears no more often that others wait for it
PATIENCE_SHARE = 0.75  # of it for the switches beyond the next one: their answers come in time to be passed on

Asked = Connection | ParentConnection  # another switch


class _Round:
    """A round is one question to several other switches at once."""

    def __init__(
        self,
        questions: "Questions",
        inquiries: set[Inquiry],
        asked: Sequence[Asked],
        chunk: tuple[int, int, int],
        plane: int,
        patience_s: float,
        done: Callable[[list[messages.Answer | None]], None],
    ):
        """Asks at once. `inquiries`: it is one of them while it lasts. `chunk`: slot, version and sequence, at `plane`.
        `done`: hears the answers, in the order of `asked`."""
        self._questions = questions
        self._inquiries = inquiries
        self._asked = {questions.next_id(): each for each in asked}
        self._answers: dict[int, messages.Answer] = {}
        self._done = done
        self._timer = questions.outside.call_later(patience_s, self._finish)
        inquiries.add(self)
        for number, each in self._asked.items():
            questions.pending[number] = self
            each.send(messages.Ask(number, *chunk, patience_s * PATIENCE_SHARE, plane))

    def on_answer(self, source: Asked, answer: messages.Answer) -> None:
        if self._asked[answer.id] is source:
            self._answers[answer.id] = answer
            if len(self._answers) == len(self._asked):
                self._finish()

    def _finish(self) -> None:
        self.cancel()
        self._done([self._answers.get(number) for number in self._asked])

    def cancel(self) -> None:
        self._timer.cancel()
        self._inquiries.discard(self)
        for number in self._asked:
            self._questions.pending.pop(number, None)


class Questions:
    """These are the questions that this switch asks, and its answers. A switch that doesn't answer is an answer too."""

    def __init__(self, data_plane: DataPlane, outside: Outside):
        self._data_plane = data_plane
        self.outside = outside
        self._ids = itertools.count()
        self.pending: dict[int, _Round] = {}

    def next_id(self) -> int:
        return next(self._ids)

    def on_answer(self, source: Asked, answer: messages.Answer) -> None:
        if answer.id in self.pending:
            self.pending[answer.id].on_answer(source, answer)

    def _held(self, slot: int, version: int, plane: int) -> SlotVersion | None:
        """Returns what the slot holds; None if nobody can tell."""
        try:
            return self._data_plane.slot_version(slot, version, plane)
        except Exception as error:  # whatever the device's driver raises
            log.error("the data plane can't say what slot %d holds: %s", slot, error, exc_info=unexpected(error))
            return None

    def _bits(self, epoch: Epoch, slot: int, version: int, sequence: int, plane: int) -> tuple[int, bool] | None:
        """Returns which workers have contributed to this sequence here, and whether the result is here; None if nobody
        can tell."""
        if epoch.slot_first is None or epoch.plan is None or not epoch.has_slot(epoch.slot_first + slot, plane):
            return 0, False  # over meanwhile, or not the job's
        held = self._held(epoch.slot_first + slot, version, plane)
        if held is None:
            return None
        everybody = (1 << len(epoch.members)) - 1
        if held.empty:
            return 0, False
        if held.sequence == sequence:
            return held.bitmap, held.complete
        is_newer = (sequence - held.sequence) % 2**32 <= 2**31
        return (0, False) if is_newer else (everybody, True)

    def answer(
        self,
        epoch: Epoch,
        ask: messages.Ask,
        asker: Member | ParentConnection | None,
        inquiries: set[Inquiry],
        reply: Callable[[messages.Answer], object],
    ) -> None:
        """Answers for everything but the asker's side of the tree; `asker` None: one of our hosts, which wants to know
        of all.

        What other switches must be asked for is one of the `inquiries` until they have answered.
        """
        chunk = ask.slot, ask.version, ask.sequence
        known = self._bits(epoch, *chunk, ask.plane)
        if known is None:  # accuse nobody: `received` says that the asker's packets may have come
            reply(messages.Answer(ask.id, missing=(), received=True, complete=False, trouble=_unreadable(epoch)))
            return
        bits, complete = known
        workers = epoch.workers()
        silent = [one for worker, one in enumerate(workers) if not bits >> worker & 1 and one is not asker]
        racks = [member for member in silent if member.rack]
        missing = {member.rank for member in silent if not member.rack}
        received = isinstance(asker, Member) and bool(bits >> workers.index(asker) & 1)
        is_full = bits == (1 << len(workers)) - 1
        uplink = epoch.uplink if epoch.uplink is not asker and not complete else None

        def conclude(answers: list[messages.Answer | None]) -> None:
            found = [_said_below(epoch, rack, said) for rack, said in zip(racks, answers, strict=False)]
            if uplink is not None:  # its answer is the last one
                found.append(_said_above(epoch, uplink, answers[-1], is_full))
            everywhere = missing.union(*(ranks for ranks, _ in found))
            trouble = " ".join(dict.fromkeys(text for _, troubles in found for text in troubles if text))[: 8 * 1024]
            reply(messages.Answer(ask.id, tuple(sorted(everywhere)), received, complete, trouble))

        asked: list[Asked] = [rack.connection for rack in racks]
        if uplink is not None:
            asked.append(uplink)
        if asked:
            _Round(self, inquiries, asked, chunk, ask.plane, min(ask.patience_s, PATIENCE_S), conclude)
        else:
            conclude([])

    def slot_state(self, epoch: Epoch, query: messages.Query, asker: Member) -> None:
        """Answers a host about a slot of its job. Those of our hosts that are missing hear that the asker waits for
        them in this sum."""
        first, slot, version, sum_name = epoch.slot_first, query.slot, query.version, query.sum
        assert first is not None  # the slot is the job's
        assert slot is not None
        left = tuple(sorted(epoch.left))
        held = self._held(slot, version, query.plane)
        if held is None:
            asker.answer(messages.SlotState(left=left, trouble=_unreadable(epoch)))
            return
        if held.empty:  # of which chunk should others be asked?
            asker.answer(messages.SlotState(left=left, missing=tuple(sorted(epoch.joined()))))
            return
        sequence, complete = held.sequence, held.complete
        epoch.stalled = StalledChunk(sequence, sum_name)

        def conclude(answer: messages.Answer) -> None:
            self.tell_awaited(epoch, answer.missing, asker, sum_name)
            asker.answer(
                messages.SlotState(
                    left=left,
                    empty=False,
                    sequence=sequence,
                    complete=complete,
                    missing=answer.missing,
                    trouble=answer.trouble,
                    who=epoch.where(answer.missing) if answer.missing else "",
                )
            )

        ask = messages.Ask(0, slot - first, version, sequence, PATIENCE_S, query.plane)
        self.answer(epoch, ask, None, asker.inquiries, conclude)

    def tell_awaited(self, epoch: Epoch, missing: Sequence[int], asker: Member, sum_name: str) -> None:
        """Tells those of our hosts that are missing, at most once a second."""
        now = self.outside.now()
        for member in epoch.members:
            if member.rack or member is asker or member.rank not in missing or now < member.awaited_told + AWAITED_S:
                continue
            member.awaited_told = now
            member.connection.send(messages.Awaited(epoch.where([asker.rank]), sum_name))


def _said_below(epoch: Epoch, rack: Member, said: messages.Answer | None) -> tuple[set[int], list[str]]:
    """Returns which ranks are missing below a rack's switch, by its answer (None: it gave none), and what the trouble
    is."""
    if said is None:
        return set(rack.ranks), [f"The switch at {rack.rack} doesn't answer."]
    if not said.missing and not said.trouble:
        return set(), [_stuck(rack.rack, epoch.own_name)]
    return set(said.missing), [said.trouble]


def _said_above(
    epoch: Epoch, uplink: ParentConnection, said: messages.Answer | None, is_full: bool
) -> tuple[set[int], list[str]]:
    """Returns the same for the parent's side. `is_full`: all of our own workers have contributed."""
    if said is None:
        return set(), [f"The switch at {uplink.name}, its parent, doesn't answer."]
    troubles = [said.trouble]
    if is_full and not said.received:
        troubles.append(_stuck(epoch.own_name, uplink.name))
    elif is_full and said.complete:
        troubles.append(_stuck(uplink.name, epoch.own_name))
    return set(said.missing), troubles


def _unreadable(epoch: Epoch) -> str:
    return f"The switch at {epoch.own_name} has no way to tell who is missing there."


def _stuck(source: str, destination: str) -> str:
    return f"What the switch at {source} sends doesn't reach the switch at {destination}: does UDP pass between them?"
