"""The P4 program on bmv2 as a switch of the star: simple_switch behind one port of its bridge, which isn't shaped."""

import os
from pathlib import Path

from star_network import BMV2, SWITCH, StarError, mac, run
from star_running import Running

PROGRAM = Path(__file__).parents[2] / "p4" / "v1model" / "passing.p4"
NAME = "switch-bmv2"  # of its process
LANES = 256  # in a packet; bmv2's time goes into packets
IN_FLIGHT = 32  # chunks of all hosts together: one port leads to all of them, and its capture ring holds so many
THRIFT = 9090  # port in the switch's namespace


def start_device(running: Running) -> list[str]:
    """Flags for the control plane, which runs at the star's centre."""
    star = running.star
    program = _compile(star.folder / "passing.json")
    switch = star.namespace(SWITCH)
    run("ip", "-n", switch, "link", "add", "device", "arp", "off", "type", "veth", "peer", "name", "bmv2")
    # It reads whole frames, as a card would bring them: no super-packets, checksums filled in.
    offloads = [word for what in ("tx", "gso", "gro", "tso") for word in (what, "off")]
    run("ip", "netns", "exec", switch, "ethtool", "-K", "bmv2", *offloads)
    run("ip", "-n", switch, "link", "set", "bmv2", "master", "bridge", "up")
    run("ip", "-n", switch, "link", "set", "device", "up")
    bmv2 = os.environ.get("PASSING_BMV2", "simple_switch")
    running.start(NAME, SWITCH, [bmv2, "-i", "0@device", "--thrift-port", str(THRIFT), str(program)])
    listening = ("ip", "netns", "exec", switch, "ss", "-ltn")
    running.wait_until(lambda: f":{THRIFT} " in run(*listening), "simple_switch didn't start")
    lines = [f'runtime = "127.0.0.1:{THRIFT}"', f'address = "{star.address(BMV2)}"', f'mac = "{mac(BMV2)}"']
    lines.append("ports = [0]")
    for rank in range(running.hosts):
        lines += ["[[neighbours]]", f'address = "{star.address(rank)}"', f'mac = "{mac(rank)}"', "port = 0"]
    file = star.folder / "bmv2.toml"
    file.write_text("\n".join(lines) + "\n")
    slots = 1 << (IN_FLIGHT // running.hosts).bit_length() - 1
    return ["--data-plane", "bmv2", "--device", str(file), "--slots-per-job", str(slots)]


def _compile(program: Path) -> Path:
    try:
        compiler = os.environ.get("PASSING_P4C", "p4c-bm2-ss")
        run(compiler, "--arch", "v1model", f"-DLANES={LANES}", "-o", str(program), str(PROGRAM))
    except FileNotFoundError as error:
        raise StarError(f"No p4c-bm2-ss ({error}): put it on the PATH, or its path in PASSING_P4C.") from error
    return program
