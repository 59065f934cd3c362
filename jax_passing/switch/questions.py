"""Who is missing in a chunk: asked at one switch, answered by all switches of the tree, in bounded time."""

import asyncio
import itertools

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_plane import DataPlane
from jax_passing.switch.epochs import Connection, Epoch, Member, ParentConnection

PATIENCE_S = 0.8  # a host waits a second for its answer (host/shard.py)
PATIENCE_SHARE = 0.75  # of it for the switches beyond the next one: their answers come in time to be passed on


class Questions:
    """Those that this switch asks, and its answers. A switch that doesn't answer is an answer too."""

    def __init__(self, data_plane: DataPlane):
        self._data_plane = data_plane
        self._ids = itertools.count()
        self._pending: dict[int, tuple[Connection | ParentConnection, asyncio.Future[messages.Answer]]] = {}

    def on_answer(self, source: Connection | ParentConnection, answer: messages.Answer) -> None:
        asked, future = self._pending.get(answer.id, (None, None))
        if asked is source and future is not None and not future.done():
            future.set_result(answer)

    async def _ask(
        self, whom: Connection | ParentConnection, slot: int, version: int, sequence: int, patience_s: float
    ) -> messages.Answer | None:
        number = next(self._ids)
        future: asyncio.Future[messages.Answer] = asyncio.get_running_loop().create_future()
        self._pending[number] = whom, future
        try:
            whom.send(messages.Ask(number, slot, version, sequence, patience_s * PATIENCE_SHARE))
            return await asyncio.wait_for(future, patience_s)
        except TimeoutError:
            return None
        finally:
            del self._pending[number]

    def _bits(self, epoch: Epoch, slot: int, version: int, sequence: int) -> tuple[int, bool] | None:
        """Which workers have contributed to this sequence here, and whether the result is here. None: who knows."""
        if epoch.slot_first is None or epoch.plan is None or slot >= epoch.plan.slot_count:
            return 0, False  # over meanwhile, or not the job's
        held = self._data_plane.slot_version(epoch.slot_first + slot, version)
        if held is None:
            return None
        everybody = (1 << len(epoch.members)) - 1
        if held.empty:
            return 0, False
        if held.sequence == sequence:
            return held.bitmap, held.complete
        is_newer = (sequence - held.sequence) % 2**32 <= 2**31
        return (0, False) if is_newer else (everybody, True)

    async def answer(self, epoch: Epoch, ask: messages.Ask, asker: Member | ParentConnection | None) -> messages.Answer:
        """Everything but the asker's side of the tree; `asker` None: one of our hosts, which wants to know of all."""
        place = ask.slot, ask.version, ask.sequence
        known = self._bits(epoch, *place)
        if known is None:  # accuse nobody: `received` says that the asker's packets may have come
            return messages.Answer(ask.id, missing=(), received=True, complete=False, trouble=_unreadable(epoch))
        bits, complete = known
        workers = epoch.workers()
        missing: set[int] = set()
        racks: list[Member] = []
        for worker, member in enumerate(workers):
            if bits >> worker & 1 or member is asker:
                continue
            if member.rack:
                racks.append(member)
            else:
                missing.add(member.rank)
        uplink = epoch.uplink if epoch.uplink is not asker and not complete else None
        whom: list[Connection | ParentConnection] = [rack.connection for rack in racks]
        if uplink is not None:
            whom.append(uplink)
        patience_s = min(ask.patience_s, PATIENCE_S)
        answers = await asyncio.gather(*(self._ask(each, *place, patience_s) for each in whom))
        troubles: list[str] = []
        for rack, said in zip(racks, answers, strict=False):
            if said is None:
                missing.update(rack.ranks)
                troubles.append(f"The switch at {rack.rack} doesn't answer.")
            else:
                missing.update(said.missing)
                troubles.append(said.trouble)
                if not said.missing and not said.trouble:
                    troubles.append(_stuck(rack.rack, epoch.own_name))
        if uplink is not None:
            said = answers[-1]
            if said is None:
                troubles.append(f"The switch at {uplink.name}, its parent, doesn't answer.")
            else:
                missing.update(said.missing)
                troubles.append(said.trouble)
                is_full = bits == (1 << len(workers)) - 1
                if is_full and not said.received:
                    troubles.append(_stuck(epoch.own_name, uplink.name))
                elif is_full and said.complete:
                    troubles.append(_stuck(uplink.name, epoch.own_name))
        received = isinstance(asker, Member) and bool(bits >> workers.index(asker) & 1)
        trouble = " ".join(dict.fromkeys(filter(None, troubles)))[: 8 * 1024]
        return messages.Answer(ask.id, tuple(sorted(missing)), received, complete, trouble)

    async def slot_state(self, epoch: Epoch, slot: int, version: int) -> messages.SlotState:
        """For a host, about a slot of its job."""
        first = epoch.slot_first
        left = tuple(sorted(epoch.left))
        if first is None:
            return messages.SlotState(left=left, missing=tuple(sorted(epoch.joined())))
        held = self._data_plane.slot_version(slot, version)
        if held is None:
            return messages.SlotState(left=left, trouble=_unreadable(epoch))
        if held.empty:  # of which chunk should others be asked?
            return messages.SlotState(left=left, missing=tuple(sorted(epoch.joined())))
        ask = messages.Ask(0, slot - first, version, held.sequence, PATIENCE_S)
        answer = await self.answer(epoch, ask, None)
        return messages.SlotState(
            left=left,
            empty=False,
            sequence=held.sequence,
            complete=held.complete,
            missing=answer.missing,
            trouble=answer.trouble,
        )


def _unreadable(epoch: Epoch) -> str:
    return f"The switch at {epoch.own_name} has no way to tell who is missing there."


def _stuck(source: str, destination: str) -> str:
    return f"What the switch at {source} sends doesn't reach the switch at {destination}: does UDP pass between them?"
