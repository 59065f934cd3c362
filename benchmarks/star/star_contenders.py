"""The contenders of star.py: how each starts, and the least time that its traffic takes.

A limit is the traffic of the busiest direction of the busiest link, with headers, over the link's rate. The planner
knows the headers: 1502 bytes of frame for 1440 of ours, and exponents; 1514 for 1448 of TCP.
"""

import sys
from collections.abc import Callable, Sequence

from star_collectives import by_gloo, by_unicast, directly, for_jax, in_network
from star_network import SWITCH
from star_running import FOLDER, Contender, Running

from jax_passing.for_jax import environment
from jax_passing.predict.constants import (
    TCP_WIRE_BYTES_PER_BYTE,
    UDP_FRAME_BYTES_PER_BYTE,
    UDP_WIRE_BYTES_PER_BYTE,
)
from jax_passing.protocol import keys

JOB = "star"
RACK = 2  # hosts in a rack, where there are racks
# The star is one network, which would carry each switch's multicast to the hosts of all racks.
IN_A_TREE = ("--no-multicast",)


def once(hosts: int, devices: int) -> float:
    """Every link carries the sum once in each direction: in-network aggregation by host."""
    return UDP_WIRE_BYTES_PER_BYTE


def narrow(bits: int) -> Callable[[int, int], float]:
    """Every link carries each float32 in `bits` bits once, and 4 bytes for each block, in each direction."""
    part = bits / 32
    return lambda hosts, devices: UDP_FRAME_BYTES_PER_BYTE * (part + 4 / (4 * 1440))


def once_a_device(hosts: int, devices: int) -> float:
    """A host's link carries the sum once for each of its devices: in-network aggregation by device."""
    return devices * UDP_WIRE_BYTES_PER_BYTE


def ring(hosts: int, devices: int) -> float:
    """Reduce-scatter and all-gather, the least traffic that hosts can do with: all but one part of H leaves, twice."""
    return 2 * (hosts - 1) / hosts * TCP_WIRE_BYTES_PER_BYTE


def server(hosts: int, devices: int) -> float:
    """A server of its own behind one link: that link carries every host's data."""
    return hosts * UDP_WIRE_BYTES_PER_BYTE


def shards(hosts: int, devices: int) -> float:
    """A server on every host for 1/H of the sum: the others send there, and their servers send back."""
    return 2 * (hosts - 1) / hosts * UDP_WIRE_BYTES_PER_BYTE


def in_rack(hosts: int, devices: int) -> float:
    """A switch on every host, for its share of the rack's sum, and a spine: what the rack's others send to that share
    and what their switches send back; and the share's sum, which goes up and comes down once."""
    rack = min(RACK, hosts)
    return (2 * (rack - 1) + 1) / rack * UDP_WIRE_BYTES_PER_BYTE


def start_ebpf(running: Running) -> None:
    """Our switch with its data plane in the kernel."""
    start_passing(running, "--data-plane", "ebpf", "--device", "bridge")


def start_by_unicast(running: Running) -> None:
    """The switch sends each host its own results."""
    start_passing(running, "--no-multicast")


def start_with_a_key(running: Running) -> None:
    """Packets have tags, which switch and hosts check."""
    switch_key = keys.new_key()
    files = {}
    for kind, key in ((keys.SWITCH, switch_key), (keys.JOB, keys.job_key(switch_key, JOB))):
        (file := running.star.folder / f"{kind}.key").touch(mode=0o600)
        file.write_text(keys.key_line(kind, key))
        files[kind] = str(file)
    start_passing(running, "--key-file", files[keys.SWITCH], JAX_PASSING_KEY_FILE=files[keys.JOB])


def start_checked(running: Running) -> None:
    """Hosts check the sums."""
    start_passing(running, JAX_PASSING_CHECK_SUMS="true")


def start_confidential(running: Running) -> None:
    """Neither the switch nor the network can read the sums."""
    (file := running.star.folder / "hosts.key").touch(mode=0o600)
    file.write_text(keys.key_line(keys.HOSTS, keys.new_key()))
    start_passing(running, JAX_PASSING_HOSTS_KEY_FILE=str(file))


def start_int16(running: Running) -> None:
    """Floats travel as 16 bits."""
    start_passing(running, JAX_PASSING_WIRE_DTYPE="int16")


def start_int8(running: Running) -> None:
    """Floats travel as 8 bits."""
    start_passing(running, JAX_PASSING_WIRE_DTYPE="int8")


def start_int4(running: Running) -> None:
    """Floats travel as 4 bits."""
    start_passing(running, JAX_PASSING_WIRE_DTYPE="int4")


def start_passing(running: Running, *flags: str, **of_ranks: str) -> None:
    """Our switches, and one process a host. `of_ranks`: their environment."""
    _start_ranks(running, _start_switches(running, *flags), **of_ranks)


def start_for_jax(running: Running) -> None:
    """A program that knows nothing of us sums over our switch."""
    switches = _start_switches(running)
    _start_ranks(running, switches, *_over_processes(running), **environment.variables())


def _start_switches(running: Running, *flags: str) -> list[str]:
    """Returns what each rank lists."""
    hosts = running.contender.switch_hosts(running.hosts)
    switches = [_address(running, host) for host in hosts]
    names = ["switch" if len(hosts) == 1 else f"switch{shard}" for shard in range(len(hosts))]
    for name, host, switch in zip(names, hosts, switches, strict=True):
        _start_switch(running, name, host, switch, *flags)
    _await_switches(running)
    return [",".join(switches)] * running.ranks


def start_tree(running: Running) -> None:
    """A switch for every rack, and one above them, all at the centre of the star."""
    root = _address(running, SWITCH)
    _start_switch(running, "switch", SWITCH, root, *IN_A_TREE)
    racks = [_address(running, SWITCH, 1 + rack) for rack in range((running.hosts + RACK - 1) // RACK)]
    for index, rack in enumerate(racks):
        _start_switch(running, f"switch{index}", SWITCH, rack, *IN_A_TREE, "--parent", root)
    _await_switches(running)
    _start_ranks(running, [racks[rank // RACK] for rank in range(running.ranks)])


def start_in_rack(running: Running) -> None:
    """A switch on every host, which its rack's hosts share, and one at the centre of the star above them."""
    root = _address(running, SWITCH)
    _start_switch(running, "switch", SWITCH, root, *IN_A_TREE)
    switches = [_address(running, host) for host in range(running.hosts)]
    for host, switch in enumerate(switches):
        _start_switch(running, f"switch{host}", host, switch, *IN_A_TREE, "--parent", root)
    _await_switches(running)
    racks = [switches[first : first + RACK] for first in range(0, running.hosts, RACK)]
    _start_ranks(running, [",".join(racks[rank // RACK]) for rank in range(running.ranks)])


def _address(running: Running, host: int, number: int = 0) -> str:
    """Returns the address of a switch on that host."""
    return f"{running.star.address(host)}:{47100 + 51 * list(CONTENDERS).index(running.name) + number}"


def _start_switch(running: Running, name: str, host: int, listen: str, *flags: str) -> None:
    command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", listen]
    running.start(name, host, [*command, *flags])


def _await_switches(running: Running) -> None:
    names = [name for name, _ in running.processes]
    running.wait_until(
        lambda: all("listening on" in running.log(name).read_text() for name in names), "the switch didn't start"
    )


def _start_ranks(
    running: Running, switches: Sequence[str], program: str = "passing", *flags: str, **variables: str
) -> None:
    """`switches`: what each rank lists."""
    for rank in range(running.ranks):
        running.start(
            f"rank{rank}",
            rank,
            running.worker(program, "--rank", str(rank), *flags),
            JAX_NUM_CPU_DEVICES=str(running.contender.devices),
            JAX_PASSING_STRATEGY=str(running.contender.strategy or "passing"),
            JAX_PASSING_SWITCH=switches[rank],
            JAX_PASSING_JOB=JOB,
            JAX_PASSING_RANK=str(rank),
            JAX_PASSING_WORLD_SIZE=str(running.ranks),
            **variables,
        )


def start_gloo(running: Running) -> None:
    program, *flags = _over_processes(running)
    for rank in range(running.hosts):
        arguments = running.worker(program, "--rank", str(rank), *flags)
        running.start(f"rank{rank}", rank, arguments, JAX_NUM_CPU_DEVICES="1")


def _over_processes(running: Running) -> tuple[str, ...]:
    """Returns the program whose mesh spans the processes, and its arguments."""
    port = 47613 + list(CONTENDERS).index(running.name)
    return "lax", "--coordinator", f"{running.star.address(0)}:{port}"


def mpirun(running: Running, **more: str) -> list[str]:
    """Open MPI over the star: what it takes for a remote shell enters the namespace of the host."""
    star = running.star
    agent = star.folder / "agent"
    hosts = range(running.hosts)
    cases = [
        f'{star.name(host)}) shift; exec {" ".join(map(_quoted, star.command(host, [])))} sh -c "$*" ;;'
        for host in hosts
    ]
    agent.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", 'echo "no host $1" >&2', "exit 1", ""]))
    agent.chmod(0o755)
    mca = {
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "routed": "direct",
        "btl": "self,tcp",
        "pml": "ob1",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        "mpi_yield_when_idle": "1",  # ranks share the processors here: spinning would starve the others
        **more,
    }
    flags = [word for key, text in mca.items() for word in ("--mca", key, text)]
    where = ",".join(star.name(host) for host in hosts)
    command = ["mpirun", "--allow-run-as-root", "-np", str(running.hosts), "--host", where, "--bind-to", "none"]
    return [*command, *flags]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def start_echo(running: Running) -> None:
    """No sum: each rank's bytes go to the switch's machine and back."""
    address = _address(running, SWITCH)
    running.start("switch", SWITCH, [sys.executable, str(FOLDER / "star_echo.py"), address])
    _await_switches(running)
    for rank in range(running.hosts):
        running.start(f"rank{rank}", rank, running.worker("echo", "--rank", str(rank), "--coordinator", address))


def start_openmpi(running: Running, program: str = "mpi", **more: str) -> None:
    running.start("mpirun", 0, [*mpirun(running, **more), *running.worker(program)], JAX_NUM_CPU_DEVICES="1")


def start_openmpi_ring(running: Running) -> None:
    start_openmpi(running, coll_tuned_use_dynamic_rules="1", coll_tuned_allreduce_algorithm="4")


def start_mpi4jax(running: Running) -> None:
    start_openmpi(running, "mpi4jax")


CONTENDERS = {
    "passing": Contender("jax_passing", start_passing, once, "passing", others=in_network),
    "unicast": Contender("jax_passing, unicast", start_by_unicast, once, "passing", others=by_unicast),
    "key": Contender("jax_passing, with a key", start_with_a_key, once, "passing", others=in_network),
    "checked": Contender("jax_passing.psum, sums checked", start_checked, once, "passing"),
    "confidential": Contender("jax_passing.psum, confidential", start_confidential, once, "passing"),
    "ebpf": Contender("jax_passing.psum, switch in eBPF", start_ebpf, once, "passing"),
    "int16": Contender("jax_passing.psum, wire_dtype int16", start_int16, narrow(16), "passing", wire_dtype="int16"),
    "int8": Contender("jax_passing.psum, wire_dtype int8", start_int8, narrow(8), "passing", wire_dtype="int8"),
    "int4": Contender("jax_passing.psum, wire_dtype int4", start_int4, narrow(4), "passing", wire_dtype="int4"),
    "passing-l2": Contender("jax_passing", start_passing, once, "passing", 2, others=in_network),
    "for-jax": Contender("jax.lax over our switch", start_for_jax, once, "passing", others=for_jax),
    "gloo": Contender("jax.lax over gloo", start_gloo, ring, "native", others=by_gloo),
    "udp-echo": Contender("UDP echo, no sum", start_echo, once, None),
    "openmpi": Contender("Open MPI", start_openmpi, ring, None, others=directly),
    "openmpi-ring": Contender("Open MPI, ring", start_openmpi_ring, ring, None),
    "flat-l2": Contender("flat, every device a rank", start_passing, once_a_device, "flat", 2),
    "mpi4jax": Contender("mpi4jax", start_mpi4jax, ring, None),
    "server": Contender("parameter server", start_passing, server, "passing", switch_hosts=lambda hosts: [hosts]),
    "shards": Contender("parameter server, shards on hosts", start_passing, shards, "passing", switch_hosts=range),
    "tree": Contender("jax_passing.psum, racks below a spine", start_tree, once, "passing"),
    "in-rack": Contender("jax_passing.psum, in-rack mode", start_in_rack, in_rack, None),
}
