// SPDX-License-Identifier: Apache-2.0
// From Ethernet to the lanes. The parser of a Tofino compares four bytes at a time, as they go by: what it can't say of
// the header is left to the first stage.
#ifndef P4_TNA_PARSER_P4_
#define P4_TNA_PARSER_P4_

#include "../headers.p4"
#include "metadata.p4"

parser HostPacket(packet_in packet, out headers_t hdr, inout metadata_t meta) {
#include "../network_states.p4"

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port, hdr.udp.udp_bytes) {
            (PASSING_PORT, UDP_BYTES): passing;
            (PASSING_PORT, BARE_UDP_BYTES): bare;
            default: accept;
        }
    }

    state passing {
        packet.extract(hdr.passing);
        transition select(hdr.passing.magic, hdr.passing.protocol, hdr.passing.type, hdr.passing.flags) {
            (MAGIC, PROTOCOL, packet_type_t.CONTRIBUTION, 0 &&& (NOT_FLAGS | BARE)): lanes;
            (MAGIC, PROTOCOL, packet_type_t.RESULT, 0 &&& (NOT_FLAGS | BARE)): lanes;
            (MAGIC, PROTOCOL, packet_type_t.PROBE, 0 &&& (NOT_FLAGS | BARE)): lanes;
            default: accept;
        }
    }

    state lanes {
        packet.extract(hdr.lanes);
        transition well_formed;
    }

    // Its lanes are left out.
    state bare {
        packet.extract(hdr.passing);
        transition select(hdr.passing.magic, hdr.passing.protocol, hdr.passing.type, hdr.passing.flags) {
            (MAGIC, PROTOCOL, packet_type_t.CONTRIBUTION, BARE &&& (NOT_FLAGS | BARE)): well_formed;
            (MAGIC, PROTOCOL, packet_type_t.RESULT, BARE &&& (NOT_FLAGS | BARE)): well_formed;
            (MAGIC, PROTOCOL, packet_type_t.PROBE, BARE &&& (NOT_FLAGS | BARE)): well_formed;
            default: accept;
        }
    }

    state well_formed {
        meta.well_formed = 1;
        transition accept;
    }
}

#endif  // P4_TNA_PARSER_P4_
