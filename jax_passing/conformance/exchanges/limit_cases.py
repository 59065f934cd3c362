"""Cases that depend on what the data plane declares: its most workers, its most lanes, whole chunks."""

from dataclasses import replace

from jax_passing.conformance.exchanges.exchange import PARENTS, Exchange, Step, answered_by_model, jobs_of
from jax_passing.conformance.exchanges.model import Limits
from jax_passing.protocol.packet import EVERY_WORKER, LANES_AT_MTU_1500, LANES_MAX, MAX, RESULT, SUM, Packet


def cases(limits: Limits) -> list[Exchange]:
    made = [
        _all_workers(workers, lane_format, limits)
        for workers in _numbers_of_workers(limits)
        for lane_format in (SUM, MAX)
    ]
    if not limits.whole_chunks:
        too_long = LANES_AT_MTU_1500 <= limits.lanes_per_chunk < LANES_MAX  # others may take more than hosts send
        return [*made, _every_count(limits), *([_too_long(limits)] if too_long else [])]
    return [*made, _whole(limits), _whole_results(limits)]


def _numbers_of_workers(limits: Limits) -> list[int]:
    """Returns numbers around the sizes of the words that a bitmap may be made of."""
    limit = limits.worker_limit
    return sorted({n for n in (1, 2, 5, 8, 9, 16, 17, 31, 32, 33, 63, 64, limit) if n <= limit})


def _exchange(description: str, jobs: str, sent: list[tuple[str, Packet]], limits: Limits) -> Exchange:
    steps = tuple(Step(source, packet.encode(), "") for source, packet in sent)
    return answered_by_model(
        Exchange(
            "limits", description, jobs_of(jobs + "^" * bool(limits.trees and "^" not in jobs)), steps, chunks="exact"
        ),
        limits,
    )


def _lanes(count: int, worker: int) -> tuple[int, ...]:
    """Makes lanes that are all different, and of both signs."""
    return tuple((lane * 1_000_003 * (-1) ** worker + worker * 7 + 1) % (1 << 32) for lane in range(count))


def _contribution(worker: int, count: int, **changes: int) -> Packet:
    packet = Packet(job=3, epoch=11, slot=9, sequence=9, worker=worker, lanes=_lanes(count, worker))
    return replace(packet, **changes)  # type: ignore[arg-type]  # numbers only


def _all_workers(workers: int, lane_format: int, limits: Limits) -> Exchange:
    count = limits.lanes_per_chunk
    sent = [(f"A{worker}", _contribution(worker, count, lane_format=lane_format)) for worker in range(workers)]
    last = workers - 1
    sent.append((f"A{last}", sent[last][1]))  # and again
    sent.append(("A0", _contribution(workers, count, lane_format=lane_format)))  # one too many
    what = "sum" if lane_format == SUM else "maximum"
    return _exchange(f"{what} of {workers} workers, {count} lanes", f"A{workers}", sent, limits)


def _every_count(limits: Limits) -> Exchange:
    most = limits.lanes_per_chunk
    counts = [*range(1, min(most, LANES_AT_MTU_1500)), *range(LANES_AT_MTU_1500, most, 89), most]
    sent = [("A0", _contribution(0, count, sequence=9 + count)) for count in counts]
    return _exchange(f"element counts up to {most}", "A1", sent, limits)


def _too_long(limits: Limits) -> Exchange:
    lanes = limits.lanes_per_chunk
    sent = [("A0", _contribution(0, lanes + 1)), ("A0", _contribution(0, lanes)), ("A1", _contribution(1, lanes))]
    return _exchange(f"packets of more than {lanes} lanes are malformed", "A2", sent, limits)


def _other_counts(lanes: int) -> list[int]:
    return sorted({1, lanes - 1, min(lanes + 1, LANES_MAX), LANES_MAX} - {0, lanes})


def _whole(limits: Limits) -> Exchange:
    lanes = limits.lanes_per_chunk
    sent = [("A0", _contribution(0, count)) for count in _other_counts(lanes)]
    sent += [("A0", _contribution(0, lanes)), ("A1", _contribution(1, lanes))]
    return _exchange(f"packets of other than {lanes} lanes are malformed", "A2", sent, limits)


def _whole_results(limits: Limits) -> Exchange:
    lanes = limits.lanes_per_chunk
    there = PARENTS["A"]
    result = Packet(
        type=RESULT, job=there.job, epoch=there.epoch, worker=EVERY_WORKER, slot=there.slot_first + 1, sequence=9
    )
    sent = [
        *((f"A{worker}", _contribution(worker, lanes)) for worker in (0, 1)),
        *(("P", replace(result, lanes=_lanes(count, 0))) for count in (*_other_counts(lanes), lanes)),
    ]
    return _exchange(f"results of other than {lanes} lanes are malformed", "A2^", sent, limits)
