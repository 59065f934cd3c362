"""Cases of a switch that drops contributions further ahead of the furthest complete one than a worker can be."""

from jax_passing.conformance.exchanges.exchange import Exchange, Step, answered_by_model, jobs_of
from jax_passing.conformance.exchanges.model import Limits, Parent
from jax_passing.protocol.packet import EVERY_WORKER, RESULT, Packet

# A live switch may have completed what other exchanges, and fences, have sent for the same job. After 64 leaps as
# long as the reach the job is beyond all that.
LEAPS = 64


def cases(limits: Limits) -> list[Exchange]:
    if limits.reach is None:
        return []
    return [_reach(limits, limits.reach, tree) for tree in (False, True) if limits.trees in (None, tree)]


def _reach(limits: Limits, reach: int, tree: bool) -> Exchange:
    (job,) = jobs_of("A2" + "^" * tree)
    lanes = (1,) * (limits.lanes_per_chunk if limits.whole_chunks else 1)

    def contribution(worker: int, sequence: int, slot: int = 1) -> Step:
        packet = Packet(
            job=job.number,
            epoch=job.epoch,
            worker=worker,
            slot=job.slot_first + slot,
            sequence=sequence % (1 << 32),
            lanes=lanes,
        )
        return Step(str(job.workers[worker]), packet.encode(), "")

    def result(parent: Parent, sequence: int, slot: int) -> Step:
        packet = Packet(
            type=RESULT,
            job=parent.job,
            epoch=parent.epoch,
            worker=EVERY_WORKER,
            slot=parent.slot_first + slot,
            sequence=sequence % (1 << 32),
            lanes=lanes,
        )
        return Step(str(parent.address), packet.encode(), "")

    leaps = [contribution(worker, leap * reach) for leap in range(1, LEAPS + 1) for worker in (0, 1)]
    here = LEAPS * reach
    steps = [
        *leaps,
        contribution(0, here + reach + 1),
        contribution(0, here + (1 << 30)),
        contribution(0, here + reach),  # by one worker: nothing is complete
        contribution(1, here + reach + 1),
        contribution(0, here),
        contribution(1, here + reach),
        contribution(1, here + 2 * reach + 1),
        contribution(1, here + 2 * reach),
    ]
    description = f"more than {reach} ahead of the furthest complete one is too far"
    if job.parent is not None:
        # A chunk that lies half a circle behind when it is forwarded lies ahead when its result comes, but not too far.
        behind = here + reach + (1 << 31)
        steps += [
            contribution(0, behind, slot=0),
            contribution(1, behind, slot=0),
            contribution(0, here + 2 * reach),
            result(job.parent, behind, slot=0),
            contribution(0, behind, slot=0),
        ]
        description += ", but no result of the parent is"
    return answered_by_model(Exchange("reach", description, (job,), tuple(steps), chunks="exact"), limits)
