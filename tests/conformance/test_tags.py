"""The suite's tags beside those of the C++ slot pool."""

from dataclasses import replace

import pytest

from jax_passing import _native
from jax_passing.conformance.live.tags import JobTags
from jax_passing.protocol import keys
from jax_passing.protocol.packet import EVERY_WORKER, LANES_MAX, RESULT, TAG_BYTES, Packet

WORKERS = [("192.0.2.1", 1024), ("192.0.2.1", 1025)]
SECRETS = [bytes([number]) * 32 for number in range(3)]


@pytest.mark.parametrize("lanes", [1, 2, 7, 359, 360, 2231, 2232])
def test_a_sum_with_tags(lanes):
    pool, tags = _native.SlotPool(slot_count=4), JobTags(SECRETS[:2], SECRETS[2])
    of_workers, of_results = [keys.packet_key(secret) for secret in SECRETS[:2]], keys.packet_key(SECRETS[2])
    pool.add_job(
        job=3,
        epoch=4,
        slot_first=0,
        slot_count=4,
        addresses=WORKERS,
        parent=None,
        keys=(of_workers, of_results),
        lanes_per_chunk=LANES_MAX,
    )
    for sequence in (0, 5, (1 << 31) + 3, (1 << 32) - 2, 1):  # over a wrap, too
        sent = Packet(job=3, epoch=4, slot=1, sequence=sequence, lanes=tuple(range(lanes)))
        for worker, address in enumerate(WORKERS):
            packet = tags.sealed(tags.contributions[worker], replace(sent, worker=worker).encode())
            verdict, _, _, _, result, *_ = pool.on_packet(packet, address)
        assert verdict == "complete"
        tags.complete(sent.encode())
        wanted = replace(sent, type=RESULT, worker=EVERY_WORKER, lanes=tuple(2 * lane for lane in sent.lanes)).encode()
        assert tags.opened(tags.results, result) == wanted
        for wrong in (wanted, result[:-1] + bytes([result[-1] ^ 1]), result[:-TAG_BYTES]):
            assert tags.opened(tags.results, wrong) != wanted
