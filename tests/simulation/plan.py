"""A plan says which parts a simulated cluster has, what its hosts do and what goes wrong: data, drawn from a seed.

A plan says nothing of the product, and parts of it can be taken away (shrink.py). Switches and hosts are known by their
numbers, which stay when others are taken away; all of chance that a plan doesn't settle is drawn from its seed as well.
"""

import msgspec

# Hosts without the key do one of these: they say so, guess another one, or join without proof.
STRANGERS = ("lacks the key", "has another key", "joins without the key")
KEY = 1

LIFE_S = 3.0  # most of what happens does so by then
HOUR_S = 3600.0


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Link(Struct):
    """A link loses, delays and changes packets of one direction: shares of them, and times."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # share that is late, by up to `reorder_us`
    reorder_us: int = 0
    delay_us: int = 20
    flip: float = 0.0
    stale: float = 0.0  # share that comes once more, up to `stale_us` later
    stale_us: int = 0
    brings_flipped: bool = False  # else UDP's checksum drops what has changed


class Switch(Struct):
    number: int
    parent: int | None = None
    slots_per_job: int = 16
    slot_total: int = 256
    lanes_per_chunk: int = 64
    whole_chunks: bool = False
    takes_bare: bool = True
    multicast: bool = True
    has_one_port: bool = False
    lanes_that_fit: int = 360  # into a packet that its network card sends
    passes_what_fits: bool = True  # the network does, of the longest of them
    key: int = 0  # which one; 0: none
    tags: bool = False  # it can, as soon as it has a key
    threads: int = 1


class Site(Struct):
    dtype: str
    leaves: tuple[int, ...]
    device_count: int = 1
    maxima: bool = False
    wire: str = "full"
    moves: str = "all"  # "gather", "scatter": each rank has a row of each leaf
    early: bool = False  # hosts issue it in order, and some of them only when the sums before it are done


class Job(Struct):
    """`programs`: sums of each execution, as indices of `sites`, one of which hosts run again and again in turn.

    `ahead`: how many executions a host begins before the first of them is done. `thinks_s`: how long it computes before
    the next one, at most.
    """

    name: str
    world_size: int
    sites: tuple[Site, ...]
    programs: tuple[tuple[int, ...], ...]
    executions: int
    ahead: int = 1
    spread_us: int = 200
    thinks_s: float = 0.0
    checks_sums: bool = False  # also where packets have tags, or nobody has a key
    is_confidential: bool = False


class Host(Struct):
    """A machine with one process at a time, which holds `sessions` sessions one after the other, and as many more as
    fail, up to `tries`.

    `switches`: by shard. `until_s`: when no more sessions begin, if not all were held by then. `does`: what nobody
    should do, if anything (hosts.py).
    """

    number: int
    job: str
    rank: int
    switches: tuple[int, ...]
    starts_s: float = 0.0
    sessions: int = 1
    tries: int = 3
    until_s: float | None = None
    does: str = ""
    lanes_that_fit: int = 360  # as a switch's
    passes_what_fits: bool = True

    @property
    def is_stranger(self) -> bool:
        return self.does in STRANGERS


class Fault(Struct):
    """`kind`: "crash", of the process (others hear it at once) or of the machine (`silent`), which begins anew after
    `for_s`, a host without `for_s` never; "pause"; "partition", from and to the rest of the world, or one way only;
    "device": a switch's data plane forgets all; "suspend": all machines stand still for about so long (`machine` is
    "all"), and those whose sessions run go on as if nothing had happened."""

    kind: str
    at_s: float
    machine: str  # "host 3" or "switch 0"
    for_s: float = 0.0
    silent: bool = False
    way: str = "both"  # "in", "out"

    @property
    def is_gentle(self) -> bool:
        """Nobody may fail because of it."""
        return self.kind in ("pause", "partition") and self.for_s <= 0.1


class Plan(Struct):
    seed: int
    up: Link
    down: Link
    switches: tuple[Switch, ...]
    jobs: tuple[Job, ...]
    hosts: tuple[Host, ...]
    faults: tuple[Fault, ...] = ()
    first_position: int = 0  # of all jobs
    forge: float = 0.0  # share of packets beside which strangers send one of theirs
    from_anywhere: bool = False  # in anybody's name
    stuck: float = 0.0  # share of lines on a control connection that take seconds
    refuses: float = 0.0  # share of jobs that a data plane refuses

    @property
    def is_gentle(self) -> bool:
        """Every session ends well, but those of strangers."""
        # Where the network loses the longest packets, one level of a tree after the other finds out, which takes time.
        late = any(host.starts_s > LIFE_S / 3 for host in self.hosts)
        in_time = not late or all(one.passes_what_fits for one in (*self.switches, *self.hosts))
        return self.runs_on and in_time and all(fault.is_gentle for fault in self.faults)

    @property
    def runs_on(self) -> bool:
        """Every session ends well that has begun to sum, but those of strangers."""
        alone = all(fault.is_gentle or fault.kind == "suspend" for fault in self.faults)
        alone &= not any(host.does and not host.is_stranger for host in self.hosts)
        return alone and not self.stuck and not self.refuses and self.is_safe and self.has_one_key

    @property
    def only_hosts_fail(self) -> bool:
        """Switches, and all connections, are sound."""
        return self.only_hosts_crash and not self.stuck and not self.refuses and self.is_safe and self.has_one_key

    @property
    def only_hosts_crash(self) -> bool:
        """No fault keeps a switch, or the way to it, silent."""
        return all(fault.kind == "crash" and fault.machine.startswith("host") for fault in self.faults)

    @property
    def has_one_key(self) -> bool:
        """Or none: then nobody is sent away for want of the right one."""
        return all(switch.key == KEY for switch in self.switches) or not any(switch.key for switch in self.switches)

    @property
    def is_safe(self) -> bool:
        """Nobody can send what isn't his, or change what others send, without anybody noticing it at once."""
        is_open = self.from_anywhere or self.up.brings_flipped or self.down.brings_flipped
        return not is_open or all(switch.key and switch.tags for switch in self.switches)


def encode(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()


def decode(text: str) -> Plan:
    return msgspec.json.decode(text, type=Plan)
