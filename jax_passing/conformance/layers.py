"""The packet as a layer of scapy (`pip install jax_passing[operator]`): to build, dissect and sniff by hand.

from scapy.all import IP, UDP, send
from jax_passing.conformance.layers import Passing
Passing(job=3, epoch=1, worker=0, slot=8, sequence=9, lanes=[5, -7]).show2()
"""

from scapy.fields import (
    ByteEnumField,
    ByteField,
    ConditionalField,
    FieldLenField,
    FieldListField,
    FlagsField,
    IntField,
    ShortEnumField,
    ShortField,
    SignedIntField,
    StrFixedLenField,
    XByteField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers

from jax_passing.protocol import packet


class Passing(Packet):
    """The element count is that of the lanes unless it is given."""

    name = "PASSING"
    fields_desc = [  # noqa: RUF012  (scapy's way)
        XByteField("magic", packet.MAGIC),
        ByteField("protocol", packet.PROTOCOL),
        ByteEnumField("type", packet.CONTRIBUTION, packet.TYPES),
        FlagsField("flags", 0, 8, ["NaN", "+Inf", "-Inf"]),
        ShortField("job", 0),
        ShortField("epoch", 0),
        ShortEnumField("worker", 0, {packet.EVERY_WORKER: "every worker"}),
        ShortField("slot", 0),
        IntField("sequence", 0),
        ByteField("version", 0),
        ByteEnumField("lane_format", packet.SUM, {1: "sum", 2: "signed maximum"}),
        FieldLenField("element_count", None, fmt="H", count_of="lanes"),
        FieldListField(
            "lanes",
            [],
            SignedIntField("lane", 0),
            count_from=lambda layer: layer.element_count,
            max_count=packet.LANES_MAX,
        ),
        ConditionalField(StrFixedLenField("tag", b"", packet.TAG_BYTES), lambda layer: layer.type & packet.TAGGED),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """A machine that offloads segmentation captures several packets in one datagram."""
        return Passing if payload[:1] == bytes([packet.MAGIC]) else super().guess_payload_class(payload)


bind_layers(UDP, Passing, dport=packet.PORT)
for _port in (packet.PORT, packet.GROUP_PORT):
    bind_bottom_up(UDP, Passing, sport=_port)
    bind_bottom_up(UDP, Passing, dport=_port)
