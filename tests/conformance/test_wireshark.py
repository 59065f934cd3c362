"""The Wireshark dissector, in tshark: on the packets of the golden table, and on captures that are made up."""

import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from jax_passing.conformance.exchanges import golden
from jax_passing.protocol.packet import CONTRIBUTION, EVERY_WORKER, RESULT, MalformedError, Packet, decode

ROOT = Path(__file__).parents[2]
DISSECTOR = ROOT / "xla_ffi/wire/passing.lua"
SWITCH, GROUP = 7171, 7170  # ports
IPS = {SWITCH: "10.0.0.2", GROUP: "239.192.0.1"}  # of others: that of hosts
FIELDS = ["type", "flags", "job", "epoch", "worker", "slot", "sequence", "version", "lane_format"]
LANES = ["-o", "passing.lanes:TRUE"]
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark isn't installed")


def dissected(file, *fields, options=()):
    """Returns each frame's fields, each as a list with one value per packet in the frame."""
    command = ["tshark", *options, "-2", "-X", f"lua_script:{DISSECTOR}", "-r", file]
    command += ["-T", "fields", "-E", "separator=|"]
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
            addresses = b"".join(socket.inet_aton(IPS.get(port, "10.0.0.1")) for port in (source, destination))
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
    frames = dissected(file, *names, options=LANES)
    assert len(frames) == len(packets)
    for data, (*fields, malformed, lanes) in zip(packets, frames, strict=True):
        packet, problem = decoded(data)
        assert malformed == problem, data.hex()
        if packet is None:
            continue
        expected = [getattr(packet, name) for name in FIELDS] + [packet.element_count]
        assert [int(values[0], 0) for values in fields] == expected, data.hex()
        assert [int(lane) % (1 << 32) for lane in lanes] == list(packet.lanes)


def test_captures_that_were_cut_short(tmp_path):
    """As by tcpdump -s and editcap -s: each frame is shown as far as it was captured, and none is malformed."""
    packet = Packet(job=7, sequence=9, lanes=tuple(range(1, 11))).encode()
    assert len(packet) == 60
    write_capture(file := tmp_path / "whole.pcap", [(5000, 7171, packet), (7171, 5000, packet + packet)])
    names = [f"passing.{name}" for name in ("job", "sequence", "lane", "malformed")]
    for bytes_kept in (18, 31, 70):
        kept = 20 + 8 + bytes_kept  # the headers of IP and UDP, too
        subprocess.run(["editcap", "-s", str(kept), file, cut := tmp_path / f"{kept}.pcap"], check=True)
        for job, sequence, lanes, malformed in dissected(cut, *names, options=LANES):
            assert malformed == []
            assert job[:1] == (["7"] if bytes_kept >= 6 else [])
            assert sequence[:1] == (["9"] if bytes_kept >= 16 else [])
            assert lanes[:10] == [str(lane) for lane in range(1, 1 + min(10, max(0, bytes_kept - 20) // 4))]


def test_each_lane_is_shown_if_that_is_wanted(tmp_path):
    """It would take most of the time: 25 times as much in all."""
    write_capture(file := tmp_path / "lanes.pcap", [(5000, 7171, Packet(lanes=(5, 6)).encode())])
    assert dissected(file, "passing.lane", "passing.element_count") == [[[], ["2"]]]
    assert dissected(file, "passing.lane", options=LANES) == [[["5", "6"]]]


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


def test_contributions_and_results_find_each_other(tmp_path):
    """Also several in one datagram, as one that was captured before it was cut apart, and results to a group."""

    def packet(worker, sequence):
        kind = RESULT if worker == EVERY_WORKER else CONTRIBUTION
        return Packet(type=kind, worker=worker, slot=sequence, sequence=sequence, lanes=(worker,)).encode()

    both = packet(EVERY_WORKER, 1) + packet(EVERY_WORKER, 2)
    datagrams = [
        (5000, SWITCH, packet(0, 1) + packet(0, 2)),
        (5001, SWITCH, packet(1, 1)),
        (5001, SWITCH, packet(1, 2)),
        (SWITCH, 5000, both),
        (SWITCH, 5001, both),
        (5000, SWITCH, packet(0, 3)),
        (5001, SWITCH, packet(1, 3)),
        (SWITCH, GROUP, packet(EVERY_WORKER, 3)),
    ]
    write_capture(file := tmp_path / "sums.pcap", datagrams)
    frames = dissected(file, "passing.result_in", "passing.contribution_in", "passing.sum_time")
    results_in, contributions_in, times_s = zip(*frames, strict=True)
    assert results_in == (["4", "4"], ["5"], ["5"], [], [], ["8"], ["8"], [])
    assert contributions_in == ([], [], [], ["1", "1"], ["2", "3"], [], [], ["7"])
    microseconds = [[round(float(time_s) * 1e6) for time_s in each] for each in times_s]
    assert microseconds == [[], [], [], [3, 3], [3, 2], [], [], [1]]
