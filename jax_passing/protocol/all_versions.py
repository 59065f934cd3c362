"""The messages by which hosts and switches of different versions tell their users so: they never change."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from jax_passing.config import SHARDS_MAX, Seconds
from jax_passing.protocol.message_fields import JobName, Lanes, Name, Nonce, Port, Rank, Reason, Text, Threads, Version
from jax_passing.protocol.packet import LANES_AT_MTU_1500

PROTOCOL_VERSION = 15


class Message(Struct, frozen=True, tag=str.lower, tag_field="type", forbid_unknown_fields=True):
    pass


class ForeignVersionError(msgspec.DecodeError):
    """A first message is of another version, and can't be understood."""

    def __init__(self, version: int):
        super().__init__(f"it speaks protocol version {version}, we speak {PROTOCOL_VERSION}")
        self.version = version


class Hello(Message, frozen=True, forbid_unknown_fields=False):
    """A switch says first who it is, and where packets go. `secured`: a caller must have a key, and speak TLS from
    the first byte on. By TLS it is the switch's own word. `lease_s`: a host that joins or meets others here, and is
    silent for so long, is lost, and so is the switch. `token`: names this connection in a Lifeline. `planes`: its
    threads, each of which takes packets at a port of its own: `data_port` and those that follow. `lanes`: the most that
    a packet may have here if its path carries more than all paths do; `path_nonce`: with this number the switch sends
    probes of the path back to the caller then. Another version's may say more."""

    protocol_version: Version
    data_host: str  # for racks' switches an IP address; empty: the host of this connection
    data_port: Port
    instance: Name  # tells this switch from any other, whatever its addresses
    secured: bool = False
    lease_s: Seconds = 30.0
    token: Text = ""
    planes: Threads = 1
    lanes: Lanes = LANES_AT_MTU_1500
    path_nonce: Nonce = 0


class ForeignJoin(Message, frozen=True, tag="join", forbid_unknown_fields=False):
    """A host of any version says this first, among more. These fields, Hello and Refused never change in all
    versions, so that hosts and switches of different ones can tell their users.

    `switches`: the instances of all that the job is spread over, this one among them, in the order of its shards.
    `instance` tells this process from any other, so that it may replace a connection of its own: it is random, and
    switches tell it to their parents only.
    """

    protocol_version: Version
    job: Name
    rank: Annotated[int, Meta(ge=0)]
    world_size: Annotated[int, Meta(ge=1)]
    switches: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=SHARDS_MAX)]
    udp_port: Port
    instance: Name
    join_deadline_s: Seconds


class ForeignRackJoin(Message, frozen=True, tag="rackjoin", forbid_unknown_fields=False):
    """A rack's switch of any version says this first, as ForeignJoin. `name`: its address, for people. `instance` is as
    a host's, not the one of its Hello, which anybody may read."""

    protocol_version: Version
    job: Name
    instance: Name
    name: Name
    udp_port: Port


class StatusQuery(Message, frozen=True, forbid_unknown_fields=False):
    """Anybody asks how the switch and its jobs are doing, and says nothing else. A host may ask after its join, too.
    Another version's may say more. `records`: the last events are wanted, too, and the flight records of the hosts."""

    protocol_version: Version
    records: bool = False


class Status(Message, frozen=True, forbid_unknown_fields=False):
    """The switch tells whoever asked. docs/operate/watching.md explains the document; another version's may have
    other fields."""

    document: dict[str, Any]


class Command(Message, frozen=True, forbid_unknown_fields=False):
    """An operator tells the switch to drain or to go on, or to end a job, or one rank of it, and says nothing else.
    `reason`: for those whom it concerns. Another version's may say more."""

    protocol_version: Version
    action: Literal["drain", "undrain", "end"]
    job: JobName = ""
    rank: Rank | None = None
    reason: Reason = ""


class Done(Message, frozen=True, forbid_unknown_fields=False):
    """The switch has carried out the command. `text`: what it did, for people. `jobs`: how many are still here."""

    text: Text
    jobs: Annotated[int, Meta(ge=0)]


class Refused(Message, frozen=True, forbid_unknown_fields=False):
    """A switch admits nobody here, and closes the connection. Between switches, if there is a `rank`: only of this one.
    Another version's may say more."""

    kind: Name
    message: Text
    rank: Rank | None = None
