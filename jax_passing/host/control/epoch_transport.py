"""The transport of an epoch begins: the welcomes of all the job's switches say by what settings, and by what keys."""

import logging
import math
from collections.abc import Sequence

from jax_passing.config import PREFIX, address_text
from jax_passing.errors import JoinError
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.outside import Transport, TransportEvents, WelcomedShard
from jax_passing.protocol import keys
from jax_passing.protocol.control_messages import Welcome
from jax_passing.protocol.keys import NONCE_BYTES

log = logging.getLogger("jax_passing")

LANES_BEHIND_MAX = 3  # those of the data, in a packet (LanesBehind in xla_ffi/host/job_config.h)


def new_nonce(context: HostContext) -> bytes:
    """Returns new randomness of this host, where sums are confidential; else empty."""
    return b"" if context.hosts_key is None else context.outside.random_bits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES)


def start(
    context: HostContext, shards: Sequence[WelcomedShard], events: TransportEvents, own_nonce: bytes
) -> Transport:
    """Starts the sums of an epoch, as all shards have been welcomed. `own_nonce`: this host's randomness, where sums
    are confidential.

    Raises:
      JoinError: the welcomes make no sense, or sums can't be confidential with them.
    """
    settings, welcomes = context.settings, [shard.welcome for shard in shards]
    slots = _agree("slots of a job", shards, [welcome.slot_count for welcome in welcomes])
    planes = planes_of(shards)
    # Each has as many shards as the others. As a number of threads is a power of two, this is as well.
    threads = math.gcd(min(welcome.threads for welcome in welcomes), planes * len(shards))
    try:
        return context.outside.start_transport(
            shards,
            events,
            job=context.job,
            rank=settings.rank,
            world_size=settings.world_size,
            planes=planes,
            threads=threads,
            # All windows together are as wide as that of one switch: it has to cover this host's link, however many
            # share its traffic. A wider one lets hosts drift apart, and their queues fill. A shard's slots are a power
            # of two. What a switch tells are those of one plane.
            slots_per_shard=1 << max(0, (slots // len(shards)).bit_length() - 1),
            lanes_per_chunk=_agree("lanes of a chunk", shards, [welcome.lanes_per_chunk for welcome in welcomes]),
            check_keys=_of_threads(check_key(context, own_nonce, welcomes), threads),
            mask_keys=_of_threads(mask_key(context, own_nonce, welcomes), threads),
            seed=settings.seed,
            check_nans=settings.check_nans,
            # Each of the switches' ports has its part of what is in flight. Each thread has a window of its own.
            ranks_at_port=_senders_at_port(welcomes, threads),
            warn_s=settings.warn_s,
            deadline_s=settings.deadline_s,
        )
    except (IndexError, ValueError) as error:  # IndexError: it has more planes than it greeted with
        raise JoinError(f"The switch's welcome makes no sense: {error}. Do the versions match?") from error


def planes_of(shards: Sequence[WelcomedShard]) -> int:
    """Returns how many planes of each switch the job uses."""
    return min(shard.welcome.planes for shard in shards)


def data_names(shards: Sequence[WelcomedShard]) -> list[str]:
    """Returns the addresses of all these planes, for people: one for each of the core's shards."""
    planes, addresses = range(planes_of(shards)), [shard.data_address for shard in shards]
    return [address_text(host, port + plane) for host, port in addresses for plane in planes]


def _of_threads(key: bytes | None, threads: int) -> list[bytes]:
    return [] if key is None else [keys.of_thread(key, thread) for thread in range(threads)]


def _senders_at_port(welcomes: Sequence[Welcome], threads: int) -> int:
    ranks = max(welcome.ranks_at_port for welcome in welcomes)
    return 1 if ranks == 1 else max(1, ranks * threads // len(welcomes))


def _agree(what: str, shards: Sequence[WelcomedShard], values: Sequence[int]) -> int:
    """Returns what every shard can do."""
    if len(set(values)) > 1:
        offers = ", ".join(f"{value} at {shard.name}" for shard, value in zip(shards, values, strict=True))
        log.warning("the switches differ in %s (%s): taking the least", what, offers)
    return min(values)


def check_key(context: HostContext, own_nonce: bytes, welcomes: Sequence[Welcome]) -> bytes | None:
    """Returns None if sums aren't checked. All hosts decide alike, as their welcomes say the same of this. Takes and
    raises what `host_nonces` does."""
    wanted = context.settings.check_sums
    if wanted is None:
        # A switch that changes a sum, and sees whether hosts refuse it, learns something of the exponents in it.
        is_confidential = context.hosts_key is not None
        has_no_tags = any(welcome.packet_keys is None for welcome in welcomes)
        wanted = is_confidential or (context.key is not None and has_no_tags)
    if not wanted:
        return None
    # The switch knows the job's key, but not the hosts'. One that lies may say its own nonces again, but not theirs.
    if context.hosts_key is not None:
        return keys.check_key(context.hosts_key, context.job, host_nonces(context, own_nonce, welcomes))
    return keys.check_key(context.key, context.job, [welcome.nonce for welcome in welcomes])


def host_nonces(context: HostContext, own_nonce: bytes, welcomes: Sequence[Welcome]) -> Sequence[bytes]:
    """Returns the randomness of all hosts, by rank, where sums are confidential. `own_nonce`: this host's.

    Raises:
      JoinError: a switch leaves out our own randomness, and by the key of an earlier epoch that one's sums could be
        read.
    """
    nonces, rank, world_size = welcomes[0].host_nonces, context.settings.rank, context.settings.world_size
    are_all_there = len(nonces) == world_size and {len(nonce) for nonce in nonces} == {NONCE_BYTES}
    if not are_all_there or nonces[rank] != own_nonce or any(each.host_nonces != nonces for each in welcomes):
        raise JoinError(
            "The switch's welcome doesn't have the random numbers of all hosts, which confidential sums need. It isn't "
            "what hosts and switches of jax_passing say: don't use this switch."
        )
    return nonces


def mask_key(context: HostContext, own_nonce: bytes, welcomes: Sequence[Welcome]) -> bytes | None:
    """Returns None if sums aren't confidential.

    Raises:
      JoinError: as `host_nonces`; or the other hosts have a key, and this one hasn't; or packets are too short for as
        many ranks.
    """
    if context.hosts_key is None:
        # An honest switch refuses such hosts by their facts. Another one would read what this host sends.
        if any(welcome.host_nonces for welcome in welcomes):
            raise JoinError(
                "The other hosts' sums are confidential, and this host has no key for that, which the switch should "
                f"have noticed. Give all hosts of the job the same file ({PREFIX}HOSTS_KEY_FILE)."
            )
        return None
    nonces, world_size = host_nonces(context, own_nonce, welcomes), context.settings.world_size
    if world_size > (most := min(welcome.lanes_per_chunk for welcome in welcomes) - LANES_BEHIND_MAX):
        raise JoinError(
            f"Confidential sums of {world_size} ranks need a lane for each in a packet, and this switch's packets have "
            f"room for {most}. Use switches with longer ones (--lanes-per-chunk), or fewer ranks."
        )
    return keys.mask_key(context.hosts_key, context.job, nonces)
