"""A job at a live switch, all of whose workers are sockets of this process."""

import itertools
import socket
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import replace

import msgspec

from jax_passing import control_messages as messages
from jax_passing.conformance.devices import DeviceError
from jax_passing.conformance.exchange import SLOT_COUNT
from jax_passing.conformance.packet import EVERY_WORKER, RESULT, Packet
from jax_passing.control_connection import ControlConnection, connect

JOIN_S = 20.0
ANSWER_S = 1.0  # a switch that doesn't answer for so long has lost the packet
ATTEMPTS = 5
HEARTBEATS_PER_LEASE = 6
PACKET_BYTES_MAX = 65536


class RefusedError(Exception):
    """The switch doesn't take such a job."""


class _Worker:
    """Its control connection, and its socket for packets."""

    def __init__(self, address: tuple[str, int]):
        self.control, hello = connect(address, JOIN_S)
        self.control.set_timeout(JOIN_S)
        self.instance = hello.instance
        family = socket.AF_INET6 if ":" in self.control.own_host else socket.AF_INET
        self.udp = socket.socket(family, socket.SOCK_DGRAM)
        self.udp.bind((self.control.own_host, 0))
        self.udp.connect((hello.data_host or self.control.switch_host, hello.data_port))  # takes no other's packets
        self.udp.settimeout(ANSWER_S)

    def close(self) -> None:
        self.udp.close()
        self.control.hang_up()
        self.control.close()


def _welcome(control: ControlConnection) -> messages.Welcome:
    while True:
        match control.receive():
            case messages.GroupOffer(nonce=nonce):
                control.send(messages.GroupReady(nonce, "a conformance test takes results one by one"))
            case messages.Refused(message=message) | messages.Failed(message=message):
                raise RefusedError(message)
            case messages.Welcome() as welcome:
                return welcome
            case answer:
                raise DeviceError(f"the switch answered {type(answer).__name__} to a join")


class LiveJob:
    """Made by joining. Raises RefusedError, DeviceError or SwitchUnreachableError.

    A switch is silent about most packets. All that it had to say to a worker has arrived once a *fence* has passed: the
    worker asks again for a complete slot, and gets that result. Packets of one path keep their order.

    Attributes:
      workers: how many.
      fences_passed: how often a worker has asked again; the switch has counted so many resends more than expected.
      lossy: a fence had to be repeated: those counts are uncertain.
    """

    def __init__(self, address: tuple[str, int], workers: int):
        self.workers = workers
        self.fences_passed, self.lossy = 0, False
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_Worker(address))
            self._join()
            self._make_fences()
        except (OSError, msgspec.DecodeError) as error:
            self.close()
            raise DeviceError(f"joining as {workers} workers: {error}") from error
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        name, count = f"conformance {uuid.uuid4().hex}", len(self._workers)
        for rank, worker in enumerate(self._workers):
            join = messages.Join(
                protocol_version=messages.PROTOCOL_VERSION,
                job=name,
                rank=rank,
                world_size=count,
                switches=(worker.instance,),
                udp_port=worker.udp.getsockname()[1],
                instance=uuid.uuid4().hex,
                join_deadline_s=JOIN_S,
            )
            worker.control.send(join)
        welcomes = [_welcome(worker.control) for worker in self._workers]
        order = sorted(range(count), key=lambda rank: welcomes[rank].worker)
        self._workers = [self._workers[rank] for rank in order]
        self.welcome = welcome = welcomes[0]
        if welcome.slot_count < 4 * SLOT_COUNT:
            raise DeviceError(f"it gives a job {welcome.slot_count} slots; the test needs {4 * SLOT_COUNT}")
        # Each exchange takes slots that none has used. The ends of the partition first: they are where mistakes are.
        groups = range(0, welcome.slot_count, SLOT_COUNT)
        self._free = deque(welcome.slot_first + group for group in (groups[0], groups[-1], *groups[2:-1]))
        self._fence_slot = welcome.slot_first + groups[1]
        self._heartbeat_at = time.monotonic()

    def _make_fences(self) -> None:
        """Completes several slot versions. They are used in turn: a late answer isn't taken for that to the next."""
        welcome, count = self.welcome, len(self._workers)
        lanes = welcome.lanes_per_chunk if welcome.whole_chunks else 1
        self._fences: list[tuple[Packet, bytes]] = []  # a contribution and its result
        for slot in range(self._fence_slot, self._fence_slot + SLOT_COUNT):
            for version in (0, 1):
                sent = Packet(
                    job=welcome.job_id, epoch=welcome.epoch, slot=slot, version=version, sequence=1, lanes=(1,) * lanes
                )
                result = replace(sent, type=RESULT, worker=EVERY_WORKER, lanes=(count,) * lanes)
                self._fences.append((sent, result.encode()))
        self._results = {fence[1] for fence in self._fences}
        self._turn = itertools.cycle(self._fences)
        for fence in self._fences:
            for worker in range(count):
                self.send(worker, replace(fence[0], worker=worker).encode())
            for worker in range(count):
                self._pass(worker, *fence)

    def send(self, worker: int, packet: bytes) -> None:
        self._workers[worker].udp.send(packet)

    def fence(self, worker: int) -> list[bytes]:
        """Returns all packets that the switch has sent to this worker up to now. Raises DeviceError."""
        sent, result = next(self._turn)
        self.send(worker, replace(sent, worker=worker).encode())
        self.fences_passed += 1
        return self._pass(worker, sent, result)

    def _pass(self, worker: int, sent: Packet, result: bytes) -> list[bytes]:
        received = []
        for _ in range(ATTEMPTS):
            with suppress(TimeoutError):
                while (packet := self._workers[worker].udp.recv(PACKET_BYTES_MAX)) != result:
                    if packet not in self._results:
                        received.append(packet)
                return received
            self.lossy = True
            self.send(worker, replace(sent, worker=worker).encode())
        raise DeviceError(
            f"worker {worker} asked {ATTEMPTS} times for a complete result, and didn't get it; without that, silence "
            "can't be told from packets under way"
        )

    def take_slots(self) -> int | None:
        """The first of SLOT_COUNT slots that were never used; None if all were."""
        return self._free.popleft() if self._free else None

    def keep_alive(self) -> None:
        now = time.monotonic()
        if now - self._heartbeat_at > self.welcome.lease_s / HEARTBEATS_PER_LEASE:
            self._heartbeat_at = now
            for worker in self._workers:
                worker.control.send(messages.Heartbeat())

    def counters(self) -> dict[str, int]:
        """The switch's, of all its jobs."""
        control = self._workers[0].control
        control.send(messages.CountersQuery())
        while not isinstance(answer := control.receive(), messages.Counters):
            if not isinstance(answer, messages.Heartbeat):
                raise DeviceError(f"the switch says {getattr(answer, 'message', answer)}")
        return answer.values

    def close(self) -> None:
        """Leaves the job, so that the switch has its slots again."""
        for worker in self._workers:
            with suppress(OSError):
                worker.control.send(messages.Leave())
        for worker in self._workers:
            with suppress(OSError, msgspec.DecodeError):
                worker.control.set_timeout(ANSWER_S)
                while not isinstance(worker.control.receive(), messages.Bye):
                    pass
            worker.close()
