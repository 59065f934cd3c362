// SPDX-License-Identifier: Apache-2.0
// From Ethernet to the lanes. The parser of a Tofino compares four bytes at a time, as they go by: what it can't say of
// the header is left to the first stage.
#ifndef P4_TNA_PARSER_P4_
#define P4_TNA_PARSER_P4_

#include "../headers.p4"

parser HostPacket(packet_in packet, out headers_t hdr) {
#include "../network_states.p4"

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port, hdr.udp.udp_bytes) {
            (PASSING_PORT, UDP_BYTES): passing;
            default: accept;
        }
    }

    state passing {
        packet.extract(hdr.passing);
        transition select(hdr.passing.magic, hdr.passing.protocol, hdr.passing.type, hdr.passing.flags) {
            (MAGIC, PROTOCOL, packet_type_t.CONTRIBUTION, 0 &&& NOT_FLAGS): lanes;
            (MAGIC, PROTOCOL, packet_type_t.RESULT, 0 &&& NOT_FLAGS): lanes;
            (MAGIC, PROTOCOL, packet_type_t.PROBE, 0 &&& NOT_FLAGS): lanes;
            default: accept;
        }
    }

    state lanes {
        packet.extract(hdr.lanes);
        transition accept;
    }
}

#endif  // P4_TNA_PARSER_P4_
