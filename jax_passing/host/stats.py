"""A session counts these."""

from typing import TypedDict


class Stats(TypedDict):
    """Counters of one host, since `init` or the last `rejoin`; all are there in every session. Bytes on the network are
    UDP payload, headers and resends included. With strategy "flat" they are of all devices' ranks together, but a sum
    and its bytes count once, and times are the longest.

    `tensor_bytes` / `session_s` is the goodput.

    Attributes:
      session_s: seconds since then.
      sums_started: sums over the hosts that began; one call may be several, one for each bucket.
      sums_completed: those of them that are complete.
      tensor_bytes: bytes of the arrays of completed sums, of one device each.
      packets_sent: packets to the switch.
      bytes_sent: their bytes.
      packets_received: packets from the switch.
      bytes_received: their bytes.
      packets_resent: packets that were sent again, as no result came in time.
      packets_dropped: packets that this host ignored: malformed, forged, of another job or epoch, or not awaited, as
        when a result comes twice.
      packets_forged: those of them that had a result's numbers, but not the switch's tag.
      sums_wrong: those of them that weren't the sum of what all hosts sent.
      order_messages: messages about the order of sums, sent or received.
      order_rollbacks: predictions of the order that turned out wrong.
      flagged_chunks: chunks with NaN or an infinity, which take two passes.
      guesses_right: small sums that took one round trip, as their scale was guessed.
      guesses_wrong: small sums that took two.
      round_trip_us: smoothed time from a packet to its result, in microseconds.
      rto_us: the wait before a packet is sent again, in microseconds.
      busy_us: time in which at least one sum was under way, in microseconds.
      window_chunks: how many chunks may be under way now.
      datagrams_unsent: packets that the kernel didn't take.
      errors_reported: errors that the network reported (ICMP), as when nobody listens at the switch's port.
    """

    session_s: float
    sums_started: int
    sums_completed: int
    tensor_bytes: int
    packets_sent: int
    bytes_sent: int
    packets_received: int
    bytes_received: int
    packets_resent: int
    packets_dropped: int
    packets_forged: int
    sums_wrong: int
    order_messages: int
    order_rollbacks: int
    flagged_chunks: int
    guesses_right: int
    guesses_wrong: int
    round_trip_us: int
    rto_us: int
    busy_us: int
    window_chunks: int
    datagrams_unsent: int
    errors_reported: int


def busy_gbit(stats: "Stats") -> float:
    """Returns the bits of the tensors of completed sums in a second of busy time, in Gbit/s; 0 if there was none."""
    busy_s = stats["busy_us"] / 1e6
    return stats["tensor_bytes"] * 8 / busy_s / 1e9 if busy_s else 0.0


def busy_share(stats: "Stats") -> float:
    """Returns the share of busy time in `session_s`, from 0 to 1."""
    return min(1.0, stats["busy_us"] / 1e6 / stats["session_s"]) if stats["session_s"] else 0.0


# A session without a switch has no transport, which counts these.
NO_NETWORK = {"datagrams_unsent": 0, "errors_reported": 0}
