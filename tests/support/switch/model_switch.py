"""A live switch whose data plane is the reference model in Python: for limits and faults that the others don't have."""

import contextlib
import socket
import threading
import time
from dataclasses import replace

from jax_passing.conformance.exchanges.model import Job, Limits, Switch
from jax_passing.conformance.live.group_checks import PROBES
from jax_passing.protocol.packet import EVERY_WORKER, PROBE, Packet
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.data_plane import SlotVersion, group_of
from jax_passing.switch.server.control_server import ControlServer
from jax_passing.switch.server.settings import SwitchSettings
from support.switch.serving_thread import ServingThread

NO_LIMITS = Limits()
SLOTS_PER_JOB = 64
WAKES_UP_S = 0.001  # with a ring, after the first packet of a burst


class ModelDataPlane:
    """`fault` takes (verdict, destinations, packet) and returns what goes wrong instead: destinations and packet.

    `ring`: of so many packets that come in one go the further ones are lost, as in bmv2; None: of any number.
    """

    host, planes = "", 1
    slot_total = 256
    can_tag = False

    def __init__(self, limits=NO_LIMITS, fault=lambda verdict, to, packet: (to, packet), multicast=False, ring=None):
        self._multicast, self._ring = multicast, ring
        self.lanes_per_chunk, self.whole_chunks = limits.lanes_per_chunk, limits.whole_chunks
        self.worker_limit, self.takes_bare = limits.worker_limit, limits.bare
        self._switch, self._fault = Switch(replace(limits, reach=6 * SLOTS_PER_JOB)), fault
        self._lock = threading.Lock()
        self._jobs = {}
        self._counts = dict.fromkeys(VERDICTS, 0)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        for received in self._packets():
            if received[0] == b"close":
                return
            with self._lock:
                answer = self._switch.on_packet(*received)
                self._counts[answer.verdict] += 1
            self.send(*self._fault(answer.verdict, answer.to, answer.packet))
            self.send(answer.bare_to, answer.bare)

    def _packets(self):
        while True:
            burst = [self._socket.recvfrom(65536)]
            if self._ring is not None:
                time.sleep(WAKES_UP_S)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        burst.append(self._socket.recvfrom(65536, socket.MSG_DONTWAIT))
            yield from burst[: self._ring]

    def send(self, to, packet):
        for address in to:
            self._socket.sendto(packet, address)

    def has_one_port(self, own_addresses):
        return False

    def group(self, job, own_address):
        if not self._multicast:
            return None
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own_address))
        return group_of(job, own_address, self.port)

    def probe(self, group, job, epoch, nonce, lanes):
        fields = {"type": PROBE, "job": job, "epoch": epoch, "sequence": nonce}
        for slot in range(PROBES):
            zeros = (0,) * (1 if slot == PROBES - 1 else lanes)
            packet = Packet(slot=slot, worker=EVERY_WORKER, lanes=zeros, **fields).encode()
            self.send(*self._fault("probe", ((group.address, group.port),), packet))

    def add_job(self, job):
        group = job.group and (job.group.address, job.group.port)
        with self._lock:
            self._jobs[job.job] = Job(job.job, job.epoch, job.slot_first, job.slot_count, job.addresses, group=group)
            self._switch.add_job(self._jobs[job.job])

    def stop_multicast(self, job):
        with self._lock:
            self._switch.stop_multicast(job)

    def remove_job(self, job):
        with self._lock:
            self._switch.remove_job(job)
            del self._jobs[job]

    def slot_version(self, slot, version, plane):
        with self._lock:
            job = next(
                job for job in self._jobs.values() if slot in range(job.slot_first, job.slot_first + job.slot_count)
            )
            state = self._switch.state(job, slot, version)
        return SlotVersion(state.empty, state.sequence, state.bitmap, state.complete)

    def check(self):
        return ""

    def counts(self, job):
        return None

    def stats(self):
        with self._lock:
            return dict(self._counts)

    def close(self):
        self._socket.sendto(b"close", ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()


class ModelSwitch(ServingThread):
    """Its control plane is the real one. `address` is where it listens."""

    def __init__(self, *arguments, switch_key=None, **changes):
        self._data_plane, self._key = ModelDataPlane(*arguments, **changes), switch_key
        super().__init__()

    async def _serve(self):
        server = ControlServer(self._data_plane, SwitchSettings(slots_per_job=SLOTS_PER_JOB), self._key)
        listener = socket.create_server(("127.0.0.1", 0))
        await server.listen(listener)
        self._on_listening(listener.getsockname())
        await self._stop.wait()
        await server.shut_down()

    def close(self):
        self.stop()
        self._data_plane.close()
