// SPDX-License-Identifier: Apache-2.0
// From Ethernet to the lanes.
//
// A packet is well formed if all holds that can be checked without knowing the job.
#ifndef P4_V1MODEL_PARSER_P4_
#define P4_V1MODEL_PARSER_P4_

#include "../headers.p4"
#include "metadata.p4"

const bit<8> NOT_VERSION = 0xFE;  // 0 or 1

parser ParsePacket(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
#include "../network_states.p4"

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            PASSING_PORT: passing;
            default: accept;
        }
    }

    state passing {
        packet.extract(hdr.passing);
        transition select(hdr.passing.magic, hdr.passing.protocol, hdr.passing.flags, hdr.passing.version) {
            (MAGIC, PROTOCOL, 0 &&& NOT_FLAGS, 0 &&& NOT_VERSION): passing_type;
            default: accept;
        }
    }

    state passing_type {
        transition select(hdr.passing.type, hdr.passing.lane_format) {
            (packet_type_t.CONTRIBUTION, lane_format_t.SUM_INT32): passing_length;
            (packet_type_t.CONTRIBUTION, lane_format_t.MAX_INT32): passing_maximum;
            (packet_type_t.RESULT, lane_format_t.SUM_INT32): passing_length;
            (packet_type_t.RESULT, lane_format_t.MAX_INT32): passing_maximum;
            (packet_type_t.PROBE, lane_format_t.SUM_INT32): passing_length;
            (packet_type_t.PROBE, lane_format_t.MAX_INT32): passing_maximum;
            default: accept;
        }
    }

    // It has all its lanes.
    state passing_maximum {
        transition select(hdr.passing.flags) {
            0 &&& ~STICKY: passing_length;
            default: accept;
        }
    }

    // All packets with lanes are of one length here. One that was cut short on its way fails in `extract`.
    state passing_length {
        transition select(hdr.passing.flags, hdr.passing.element_count, hdr.udp.udp_bytes, hdr.ipv4.total_bytes) {
            (0 &&& BARE, LANES, UDP_BYTES, IPV4_BYTES): lanes;
            (BARE &&& BARE, LANES, BARE_UDP_BYTES, BARE_IPV4_BYTES): well_formed;
            default: accept;
        }
    }

    state lanes {
        packet.extract(hdr.lanes);
        transition well_formed;
    }

    state well_formed {
        meta.well_formed = 1;
        transition accept;
    }
}

#endif  // P4_V1MODEL_PARSER_P4_
