"""The Wireshark dissector, in tshark: on the packets of the golden table, and on a capture of a real sum."""

import collections
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jax_passing.config import parse_address
from jax_passing.conformance.exchanges import golden
from jax_passing.host.control_connection import ControlConnection
from jax_passing.protocol.packet import CONTRIBUTION, MAX, RESULT, MalformedError, Packet, decode
from support.switch.in_process import SwitchThread

ROOT = Path(__file__).parents[2]
DISSECTOR = ROOT / "xla_ffi/wire/passing.lua"
FIELDS = ["type", "flags", "job", "epoch", "worker", "slot", "sequence", "version", "lane_format"]
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark isn't installed")


def dissected(file, *fields):
    """Returns each frame's fields, each as a list with one value per packet in the frame."""
    command = ["tshark", "-2", "-X", f"lua_script:{DISSECTOR}", "-r", file, "-T", "fields", "-E", "separator=|"]
    for field in fields:
        command += ["-e", field]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Lua" not in run.stderr, run.stderr
    return [[value.split(",") if value else [] for value in line.split("|")] for line in run.stdout.splitlines()]


def write_capture(file, datagrams):
    """A pcap file of IPv4 packets; each datagram has (source port, destination port, payload)."""
    with file.open("wb") as out:
        out.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
        for number, (source, destination, payload) in enumerate(datagrams):
            udp = struct.pack("!HHHH", source, destination, 8 + len(payload), 0) + payload
            addresses = socket.inet_aton("10.0.0.1") + socket.inet_aton("10.0.0.2")
            ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + addresses + udp
            out.write(struct.pack("=IIII", 1_700_000_000, number, len(ip), len(ip)) + ip)


def decoded(data):
    """The packet or None, and what is wrong with it."""
    try:
        return decode(data), []
    except MalformedError as error:
        return None, [str(error)]


def test_golden_packets(tmp_path):
    packets = [data for case in golden.read() for step in case.steps for data in (step.packet, step.out) if data]
    write_capture(file := tmp_path / "golden.pcap", [(5000, 7171, data) for data in packets])
    names = [f"passing.{name}" for name in [*FIELDS, "element_count", "malformed", "lane"]]
    frames = dissected(file, *names)
    assert len(frames) == len(packets)
    for data, (*fields, malformed, lanes) in zip(packets, frames, strict=True):
        packet, problem = decoded(data)
        assert malformed == problem, data.hex()
        if packet is None:
            continue
        expected = [getattr(packet, name) for name in FIELDS] + [len(packet.lanes)]
        assert [int(values[0], 0) for values in fields] == expected, data.hex()
        assert [int(lane) % (1 << 32) for lane in lanes] == list(packet.lanes)


def test_packets_are_recognised_on_any_port(tmp_path):
    other = Packet(lanes=(1,)).encode()[:-1] + b"\1\2"
    write_capture(file := tmp_path / "port.pcap", [(5000, 4242, Packet(lanes=(1,)).encode()), (5000, 4242, other)])
    assert dissected(file, "passing.job") == [[["0"]], [[]]]


def test_a_worker_that_cant_be_is_noted(tmp_path):
    packets = [Packet(worker=64, lanes=(1,)), Packet(worker=63, lanes=(1,)), Packet(type=RESULT, worker=1, lanes=(1,))]
    write_capture(
        file := tmp_path / "worker.pcap", [(5000 + i, 7171, packet.encode()) for i, packet in enumerate(packets)]
    )
    notes = [frame[0] for frame in dissected(file, "_ws.expert.message")]
    assert notes == [["No such worker"], [], ["No such worker"]]


def test_a_resent_packet_is_noted(tmp_path):
    packet = Packet(lanes=(1,)).encode()
    write_capture(file := tmp_path / "again.pcap", [(5000, 7171, packet), (5001, 7171, packet), (5000, 7171, packet)])
    assert [frame[0] for frame in dissected(file, "passing.first_in")] == [[], [], ["1"]]


class Capture:
    """tshark on the loopback interface: all that goes to a port or comes from it, to a group as well.

    Skips the test if this machine doesn't let us.
    """

    def __init__(self, file, port):
        self._port = port
        command = ["tshark", "-i", "lo", "-f", f"udp port {port}", "-s", "0", "-w", str(file)]
        self._process = subprocess.Popen(
            [*command, "-P", "-l", "-T", "fields", "-e", "frame.len"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # It says too early that it captures: it does once it has seen a packet of ours.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prodding:
            until = time.monotonic() + 20
            while not select.select([self._process.stdout], [], [], 0.1)[0]:
                prodding.sendto(b"?", ("127.0.0.1", port))
                if time.monotonic() > until:
                    self.stop()
                    pytest.skip("tshark captures nothing on the loopback interface")
        if self._process.poll() is not None:
            pytest.skip(f"tshark can't capture here: {self._process.stderr.read().decode().strip()}")

    def finish(self):
        """Waits until it has seen all that was sent before: packets of this interface keep their order."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"??", ("127.0.0.1", self._port))
        frame_length = b"%d\n" % (14 + 20 + 8 + 2)
        while self._process.stdout.readline() not in (frame_length, b""):
            pass
        self.stop()

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)


def packets_of(payload):
    """A datagram that was captured before its packets were cut apart has several."""
    while payload:
        length = 20 + 4 * int.from_bytes(payload[18:20])
        yield decode(payload[:length])
        payload = payload[length:]


def test_a_real_sum(tmp_path):
    running = SwitchThread()
    control = ControlConnection(parse_address(running.address), key=None, job="test")
    control.close()
    capture = Capture(file := tmp_path / "sum.pcapng", control.hello.data_port)
    try:
        command = [sys.executable, "-P", "-m", "jax_passing", "run", "--hosts", "2", "--switch", running.address]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        subprocess.run([*command, ROOT / "examples/hello_psum.py"], env=environment, timeout=120, check=True)
        capture.finish()
    finally:
        capture.stop()
        running.stop()

    names = [f"passing.{name}" for name in FIELDS]
    found = ["udp.payload", "passing.malformed", "passing.contribution_in", "passing.result_in", "passing.sum_time"]
    sums = collections.defaultdict(list)
    results = {}
    for payload, malformed, contribution_in, result_in, sum_time, *fields in dissected(file, *found, *names):
        data = bytes.fromhex(payload[0])
        if data in (b"?", b"??"):
            continue
        assert not malformed
        packets = list(packets_of(data))
        for name, values in zip(FIELDS, fields, strict=True):
            assert [int(value, 0) for value in values] == [getattr(packet, name) for packet in packets]
        contributions = [packet for packet in packets if packet.type == CONTRIBUTION]
        assert len(result_in) == len(contributions), "every contribution led to a result"
        assert len(contribution_in) == len(sum_time) == sum(packet.type == RESULT for packet in packets)
        for packet in packets:
            key = packet.slot, packet.version, packet.sequence
            if packet.type == CONTRIBUTION:
                sums[key].append(packet)
            elif packet.type == RESULT:
                results[key] = packet
    assert results
    for key, result in results.items():
        lanes = zip(*(packet.lanes for packet in {packet.worker: packet for packet in sums[key]}.values()), strict=True)
        if result.lane_format != MAX:
            assert list(result.lanes) == [sum(lane) % (1 << 32) for lane in lanes]
