"""Cases of a switch that drops contributions which lie further ahead of what is complete than a worker can be."""

from jax_passing.conformance.exchange import Exchange, Step, answered_by_model, jobs_of
from jax_passing.conformance.model import Limits
from jax_passing.protocol.packet import Packet

# A live switch may have completed what other exchanges, and fences, have sent for the same job. After so many leaps as
# long as the reach the job is beyond all that.
LEAPS = 64


def cases(limits: Limits) -> list[Exchange]:
    return [] if limits.reach is None else [_reach(limits, limits.reach)]


def _reach(limits: Limits, reach: int) -> Exchange:
    def contribution(worker: int, sequence: int) -> Step:
        lanes = (1,) * (limits.lanes_per_chunk if limits.whole_chunks else 1)
        packet = Packet(job=3, epoch=11, slot=9, sequence=sequence % (1 << 32), worker=worker, lanes=lanes)
        return Step(f"A{worker}", packet.encode(), "")

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
    jobs = jobs_of("A2" + "^" * bool(limits.trees))
    description = f"more than {reach} ahead of what is complete is too far"
    return answered_by_model(Exchange("reach", description, jobs, tuple(steps), chunks="exact"), limits)
