"""Multicast, as far as no exchange of packets shows it: the group that is offered, its probes, how it is given up."""

import ipaddress
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from jax_passing.conformance.live.data_socket import GroupSocket
from jax_passing.conformance.live.job import Join, LiveJob
from jax_passing.conformance.live.joining import WorkerEnd
from jax_passing.conformance.switch_under_test import Check, NotApplicableError, UntestableError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import GROUP_PORT, PROBE, MalformedError, decode

GROUPS = ipaddress.IPv4Network("239.192.0.0/14")
PROBES = 44  # of a burst: full packets, and a last one of one lane
BURSTS = 5
PROBING_S = 6.0  # five bursts take 0.6 s, but this machine may be busy
QUIET_S = 0.8  # a burst too many would come 0.64 s after the last one
SECTION = "multicast"


def _say_ready(workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> GroupSocket:
    """One socket hears the group: all workers are on this machine, where all would hear the same."""
    group = workers[0].hear((offers[0].address, offers[0].port))
    for worker, offer in zip(workers, offers, strict=True):
        worker.control.send(messages.GroupReady(offer.nonce))
    return group


@dataclass
class Heard:
    """Probes of a group. `counts`: how often each came, by its index; `lanes`: of all but the last."""

    counts: Counter[int] = field(default_factory=Counter)
    lanes: set[int] = field(default_factory=set)


def _listen(
    heard: Heard, group: GroupSocket, offer: messages.GroupOffer, bursts: int, wait_s: float = PROBING_S
) -> None:
    """Returns at once when this number of bursts has come. Raises UntestableError."""
    until = time.monotonic() + wait_s
    with suppress(TimeoutError):
        while min(heard.counts[index] for index in range(PROBES)) < bursts:
            data = group.receive(until)
            try:
                probe = decode(data)
            except MalformedError as error:
                raise UntestableError(f"what comes to the group {group.name} is no packet: {error}") from error
            got = probe.type, probe.job, probe.epoch, probe.sequence
            wanted = PROBE, offer.job_id, offer.epoch, offer.nonce
            if got != wanted:
                raise UntestableError(
                    f"to the group {group.name} comes a packet whose type, job, epoch and sequence are {got}; those of "
                    f"a probe, as offered, are {wanted}"
                )
            if not 0 <= probe.slot < PROBES:
                raise UntestableError(f"a probe's slot is {probe.slot}; it is its index among {PROBES}")
            if probe.slot == PROBES - 1 and len(probe.lanes) != 1:
                raise UntestableError(f"the last probe of a burst has {len(probe.lanes)} lanes, not 1")
            if probe.slot < PROBES - 1:
                heard.lanes.add(len(probe.lanes))
            heard.counts[probe.slot] += 1


def hear(workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> GroupSocket:
    """Has all workers hear the group. Raises UntestableError if its probes don't come."""
    group, heard = _say_ready(workers, offers), Heard()
    try:
        _listen(heard, group, offers[0], 1)
        came = sum(count > 0 for count in heard.counts.values())
        if came < PROBES:
            raise UntestableError(
                f"it offers the multicast group {group.name}; {came} of its {PROBES} probes came here "
                f"within {PROBING_S:g} s (where the network carries no multicast, start it with --no-multicast)"
            )
        if group.stray:
            raise UntestableError(f"there came {group.stray}")
    except BaseException:
        group.close()
        raise
    for worker, offer in zip(workers, offers, strict=True):
        worker.control.send(messages.GroupHeard(offer.nonce))
    return group


def checks(join: Join, one: LiveJob, offered: bool, trouble: str) -> list[Check]:
    """`one`: a job of one worker. `trouble`: the failure when two workers wanted to hear the group they were
    `offered`."""

    def only_if_offered() -> None:
        if not offered:
            raise NotApplicableError("the switch offers no multicast group")

    def results() -> str:
        only_if_offered()
        return trouble

    def alone() -> str:
        return "" if one.offer is None else f"it offers the group {one.offer.address}"

    def group() -> str:
        only_if_offered()
        with closing(join(2)) as first, closing(join(2)) as second:
            assert first.offer is not None
            assert second.offer is not None
            for job, offer in ((first, first.offer), (second, second.offer)):
                if ipaddress.ip_address(offer.address) not in GROUPS or offer.port != GROUP_PORT:
                    return f"it offers {offer.address}, port {offer.port}"
                numbers, welcome = (offer.job_id, offer.epoch), (job.welcome.job_id, job.welcome.epoch)
                if numbers != welcome:
                    return f"job and epoch are {numbers} in its offer, {welcome} in its welcome"
            if first.offer.address == second.offer.address:
                return f"two jobs are offered the same one, {first.offer.address}"
        return ""

    def not_heard() -> str:
        only_if_offered()
        heard = Heard()

        def rank_1_hears_another(workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> None:
            with closing(_say_ready(workers, offers)) as udp:
                workers[0].control.send(messages.GroupHeard(offers[0].nonce))
                workers[1].control.send(messages.GroupHeard(offers[1].nonce ^ 1))
                _listen(heard, udp, offers[0], BURSTS)
                _listen(heard, udp, offers[0], 2 * BURSTS, QUIET_S)

        join(2, rank_1_hears_another).close()
        lanes = one.welcome.lanes_per_chunk
        if heard.lanes != {lanes}:
            return f"all probes but the last have {lanes} lanes, as full packets; there came some of {heard.lanes}"
        often = max(heard.counts.values(), default=0)  # some may be lost
        if often != BURSTS:
            return f"while one rank hasn't heard all, probes came {often} times, not {BURSTS} times"
        return ""

    def cant_join() -> str:
        only_if_offered()

        def rank_1_cant(workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> None:
            for worker, problem in zip(workers, ("", "this is a test"), strict=True):
                worker.control.send(messages.GroupReady(offers[0].nonce, problem))

        join(2, rank_1_cant).close()  # a job is made by sums: whose results come to each worker
        return ""

    def no_answer() -> str:
        only_if_offered()

        def rank_1_is_silent(workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> None:
            workers[0].control.send(messages.GroupReady(offers[0].nonce))

        join(2, rank_1_is_silent).close()
        return ""

    def lost() -> str:
        only_if_offered()
        if trouble:
            raise NotApplicableError("results don't go to a group here")
        with closing(join(2, hear)) as job:
            return job.lose_group()

    found = {
        "a job of one worker is offered no group": alone,
        "a group is offered in 239.192.0.0/14, UDP port 7170, to each job another; job and epoch are its own": group,
        f"{PROBES} probes, then results come to the group, from the switch's data address, with a TTL of 1": results,
        f"a rank hasn't heard all probes: after {BURSTS} bursts results come to each worker": not_heard,
        "a rank can't join the group: results come to each worker": cant_join,
        "a rank doesn't say whether it has joined the group: results come to each worker": no_answer,
        "a rank says that it no longer hears the group: results come to each worker": lost,
    }
    return [Check(SECTION, description, find) for description, find in found.items()]
