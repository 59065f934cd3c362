"""All workers of a job join it: their control connections, the group that they are offered, their welcomes."""

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import msgspec

from jax_passing.conformance.live.data_socket import DataSocket, GroupSocket
from jax_passing.conformance.live.tags import JobTags
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.host.control.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages

JOIN_S = 20.0
LEAVE_S = 5.0
ANSWER_S = 1.0  # a switch that doesn't answer for so long has lost the packet

M = TypeVar("M", bound=messages.Message)


class RefusedError(Exception):
    """The switch doesn't take such a job."""


class WorkerEnd:
    """A worker's control connection, and its socket for packets."""

    def __init__(self, address: tuple[str, int], job: str, key: bytes | None):
        """`key`: the job's, if the switch wants one."""
        self.control = ControlConnection(address, key=key, job=job, deadline_s=JOIN_S)
        hello = self.control.hello
        self.instance = hello.instance
        self.data_address = (hello.data_host or self.control.switch_host, hello.data_port)
        self.planes = hello.planes
        self.udp = DataSocket(self.control.own_host)
        self.udp.set_switch(*self.data_address)

    def hear(self, group: tuple[str, int]) -> GroupSocket:
        """Joins it on the interface that leads to the switch. Raises OSError."""
        udp = GroupSocket(group, self.control.own_host)
        udp.set_switch(*self.data_address)
        return udp

    def close(self) -> None:
        self.udp.close()
        self.control.close()


def ask(control: ControlConnection, question: messages.Message, kind: type[M]) -> M:
    """Asks the switch, and returns its answer of this kind; heartbeats may come before."""
    control.send(question)
    until = time.monotonic() + JOIN_S
    while not isinstance(answer := control.receive(until), kind):
        if not isinstance(answer, messages.Heartbeat):
            raise UntestableError(f"the switch says {getattr(answer, 'message', answer)}")
    return answer


# Workers say this to the groups that they are offered, one each. Returns the socket to which results shall come.
GroupAnswer = Callable[[Sequence[WorkerEnd], Sequence[messages.GroupOffer]], GroupSocket | None]


def decline(workers: Sequence[WorkerEnd], offers: Sequence[messages.GroupOffer]) -> None:
    for worker, offer in zip(workers, offers, strict=True):
        worker.control.send(messages.GroupReady(offer.nonce, "a conformance test takes these results one by one"))


@dataclass(frozen=True)
class Joined:
    """These workers have joined a job at the switch.

    Attributes:
      workers: by their numbers at the switch.
      ranks: of each worker.
      offer: of a multicast group, if there was one.
      group: the socket that hears it, if results go there.
      tags: of its packets, if they have any.
    """

    workers: list[WorkerEnd]
    ranks: list[int]
    welcome: messages.Welcome
    offer: messages.GroupOffer | None
    group: GroupSocket | None
    tags: JobTags | None


def join_request(
    job: str, rank: int, world_size: int, switch: str, udp_port: int, wait_s: float, planes: int = 1
) -> messages.Join:
    """Makes what a worker says to join. `switch`: its instance."""
    return messages.Join(
        protocol_version=messages.PROTOCOL_VERSION,
        job=job,
        rank=rank,
        world_size=world_size,
        switches=(switch,),
        udp_port=udp_port,
        instance=uuid.uuid4().hex,
        join_deadline_s=wait_s,
        planes=planes,
    )


def join(workers: Sequence[WorkerEnd], job: str, answer: GroupAnswer, wait_s: float, planes: int = 1) -> Joined:
    """Has the workers join the job, and wait for `wait_s` at most until it starts. `planes`: at most these.

    Raises RefusedError, UntestableError, OSError or msgspec.DecodeError.
    """
    for rank, worker in enumerate(workers):
        worker.control.send(join_request(job, rank, len(workers), worker.instance, worker.udp.port, wait_s, planes))
    until = time.monotonic() + wait_s + ANSWER_S  # the switch has given up before, and said why
    first = [_offer_or_welcome(worker.control, until) for worker in workers]
    offers = [message for message in first if isinstance(message, messages.GroupOffer)]
    if offers and offers != [offers[0]] * len(workers):
        raise UntestableError(f"it offers a multicast group, but not the same to all ranks: {first}")
    group = answer(workers, offers) if offers else None
    try:
        welcomes = [
            message if isinstance(message, messages.Welcome) else _welcome(worker.control, until)
            for worker, message in zip(workers, first, strict=True)
        ]
        _check(welcomes)
    except BaseException:
        if group is not None:
            group.close()
        raise
    ranks = sorted(range(len(workers)), key=lambda rank: welcomes[rank].worker)
    offer, tags = next(iter(offers), None), _tags([welcomes[rank] for rank in ranks])
    joined = Joined([workers[rank] for rank in ranks], ranks, welcomes[0], offer, group, tags)
    if tags is not None:
        _seal(joined, tags)
    return joined


def _seal(joined: Joined, tags: JobTags) -> None:
    """Has the sockets put tags on what is sent, and take them off what comes."""
    for number, worker in enumerate(joined.workers):
        worker.udp.seal = partial(tags.sealed, tags.contributions[number])
        worker.udp.open = partial(tags.opened, tags.results)
    if joined.group is not None:
        joined.group.open = partial(tags.opened, tags.results)


def at_plane(joined: Joined, plane: int) -> Joined:
    """Has the workers' sockets speak to that plane of the switch. Raises OSError."""
    for worker in joined.workers:
        host, port = worker.data_address
        worker.udp.set_switch(host, port + plane)
    if joined.tags is None:
        return joined
    there = replace(joined, tags=(tags := joined.tags.at_plane(plane)))
    _seal(there, tags)
    return there


def leave(workers: Sequence[WorkerEnd]) -> None:
    """Leaves the job, and waits until the switch has dealt with that, so that it isn't taken for a failure."""
    until = time.monotonic() + LEAVE_S
    for worker in workers:
        with suppress(OSError):
            worker.control.send(messages.Leave())
    for worker in workers:
        with suppress(OSError, msgspec.DecodeError):
            while not isinstance(worker.control.receive(until), messages.Bye):
                pass


def _offer_or_welcome(control: ControlConnection, until: float) -> messages.GroupOffer | messages.Welcome:
    match control.receive(until):
        case messages.Refused(message=message) | messages.Failed(message=message):
            raise RefusedError(message)
        case messages.GroupOffer() | messages.Welcome() as answer:
            return answer
        case other:
            raise UntestableError(f"the switch answered {type(other).__name__} to a join")


def _welcome(control: ControlConnection, until: float) -> messages.Welcome:
    while not isinstance(message := _offer_or_welcome(control, until), messages.Welcome):
        pass
    return message


def _tags(welcomes: list[messages.Welcome]) -> JobTags | None:
    """Makes the job's tags from the welcomes, which are in the order of the workers' numbers."""
    contributions = [secret for welcome in welcomes if (secret := welcome.contribution_secret) is not None]
    results = welcomes[0].result_secret
    if results is None and not contributions:
        return None
    if results is None or len({results, *contributions}) != 1 + len(welcomes):
        raise UntestableError("its welcomes don't have a secret for each worker's packets, and one for results")
    return JobTags(contributions, results)


def _check(welcomes: list[messages.Welcome]) -> None:
    """Checks that welcomes are the same to all, except for the worker's number and its secret."""
    numbers = [welcome.worker for welcome in welcomes]
    if sorted(numbers) != list(range(len(welcomes))):
        raise UntestableError(f"it numbers its {len(welcomes)} workers {', '.join(map(str, numbers))}")
    first = welcomes[0]
    for rank, welcome in enumerate(welcomes):
        for name in welcome.__struct_fields__:
            ours, other = getattr(first, name), getattr(welcome, name)
            if name not in ("worker", "contribution_secret") and ours != other:
                raise UntestableError(f"{name} is {ours} in its welcome to rank 0, {other} in that to rank {rank}")
