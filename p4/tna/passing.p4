// SPDX-License-Identifier: Apache-2.0
// jax-passing for Tofino 1 (tna) and Tofino 2 (t2na). Its resources, and the tables that the control plane fills:
// docs/data_planes/p4.md.
#include <core.p4>
#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#else
#include <t2na.p4>
#endif

#include "lane_header.p4"
#include "../headers.p4"
#include "metadata.p4"
#include "parser.p4"

#include "own_address.p4"
#include "admission.p4"
#include "left_out_lanes.p4"
#include "slot_check.p4"
#include "lanes.p4"
#include "next_step.p4"
#include "forward.p4"
#include "replication.p4"

// --- Ingress

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t arrival) {
    HostPacket() host_packet;

    state start {
        packet.extract(arrival);
        packet.advance(PORT_METADATA_SIZE);
        meta.to_us = 0;
        meta.forward = 1;
        meta.well_formed = 0;
        meta.accepted = 0;
        meta.fresh = 0;
        meta.index = 0;
        meta.worker = 0;
        meta.others = 0;
        meta.held_format = 0;
        meta.own = 0;
        meta.left = 0;
        meta.wish = 0;
        meta.needing = 0;
        meta.slot_step = slot_step_t.STALE;
        meta.lanes_step = lanes_step_t.LEAVE;
        transition select(arrival.ingress_port) {
            RECIRCULATION_PORT &&& 0x7F: recirculated;
            default: arrived;
        }
    }

    state arrived {
        meta.pass = pass_t.FIRST;
        meta.verdict = verdict_t.MALFORMED;
        transition host_packet_;
    }

    state recirculated {
        packet.extract(meta.recirculation);
        meta.pass = meta.recirculation.pass;
        meta.verdict = meta.recirculation.verdict;
        transition host_packet_;
    }

    state host_packet_ {
        host_packet.apply(packet, hdr, meta);
        transition accept;
    }
}

control PassingIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t arrival,
                       in ingress_intrinsic_metadata_from_parser_t parsed,
                       inout ingress_intrinsic_metadata_for_deparser_t departure,
                       inout ingress_intrinsic_metadata_for_tm_t manager) {
    OwnAddress() own_address;
    Admission() admission;
    OwnFlags() own_flags;
    SlotCheck() slot_check;
    Needs() needs;
    Lanes() lanes;
    NextStep() next_step;
    AnswerArp() answer_arp;
    AnswerPing() answer_ping;
    Forward() forward;
    Counter<bit<32>, bit<8>>(VERDICTS, CounterType_t.PACKETS) verdicts;

    apply {
        meta.recirculation.setInvalid();
        meta.copy.setInvalid();
        meta.needs.setInvalid();
        if (hdr.arp.isValid()) {
            answer_arp.apply(hdr, meta, arrival, manager);
        } else if (hdr.ipv4.isValid()) {
            own_address.apply(hdr, meta);
        }

        // The parser left these checks to us. If one fails, the verdict stays what it was at first: malformed.
        if (meta.well_formed == 1 && hdr.passing.version[7:1] == 0 && hdr.passing.element_count == LANES) {
            if ((hdr.lanes.isValid() && hdr.ipv4.total_bytes == IPV4_BYTES) ||
                (!hdr.lanes.isValid() && hdr.ipv4.total_bytes == BARE_IPV4_BYTES)) {
                if (hdr.passing.lane_format == lane_format_t.SUM_INT32 ||
                    (hdr.passing.lane_format == lane_format_t.MAX_INT32 && hdr.passing.flags[4:3] == 0)) {
                    admission.apply(hdr, meta);
                }
            }
            if (meta.accepted == 1) {
                own_flags.apply(hdr, meta);
                slot_check.apply(hdr, meta);
                needs.apply(meta);
            }
        }

        // On Tofino 1 a branch of the program ends before what follows it begins: so all branches come first, and the
        // eight stages of lanes last, passed by every packet.
        if (meta.to_us == 1) {
            if (hdr.udp.isValid() && hdr.udp.dst_port == PASSING_PORT) {
                if (meta.pass == pass_t.FIRST || meta.pass == pass_t.ANSWER ||
                    (meta.pass == pass_t.ASK && meta.needing != 0)) {
                    verdicts.count((bit<8>)meta.verdict);
                }
                next_step.apply(hdr, meta, arrival, departure, manager);
            } else if (hdr.icmp.isValid() && hdr.icmp.type == ECHO_REQUEST) {
                answer_ping.apply(hdr, meta, arrival, manager);
            } else {
                departure.drop_ctl = 1;
            }
        }
        lanes.apply(hdr, meta);
        if (meta.forward == 1) { forward.apply(hdr, meta, arrival, manager); }
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t departure) {
    Checksum() ipv4_checksum;

    apply {
        if (meta.to_us == 1) { hdr.ipv4.checksum = ipv4_checksum.update(IPV4_FIELDS(hdr.ipv4)); }
        packet.emit(meta.recirculation);
        packet.emit(meta.copy);
        packet.emit(meta.needs);
        packet.emit(hdr);
    }
}

// --- Egress: multicast copies alone

struct egress_metadata_t {
    copy_h copy;
    needs_h needs;
    bit<1> needless;  // its worker needs no lanes of the result, and gets none
}

parser EgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                    out egress_intrinsic_metadata_t arrival) {
    state start {
        packet.extract(arrival);
        packet.extract(meta.copy);
        meta.needless = 0;
        transition select(meta.copy.result, arrival.egress_rid[4:3]) {
            (1, 0): workers_0;
            (1, 1): workers_8;
            (1, 2): workers_16;
            (1, 3): workers_24;
            default: accept;
        }
    }

    // Is the bit of the copy's worker set? A Tofino's parser has few bytes that it remembers: so the worker's number
    // is asked in two parts, the second one as the bits go by.
#define WORKERS(first, last)                                                               \
    state workers_##first {                                                                \
        packet.extract(meta.needs);                                                        \
        transition select(arrival.egress_rid[2:0], meta.needs.workers[last:first]) {       \
            (0, 0x01 &&& 0x01): needed;                                                    \
            (1, 0x02 &&& 0x02): needed;                                                    \
            (2, 0x04 &&& 0x04): needed;                                                    \
            (3, 0x08 &&& 0x08): needed;                                                    \
            (4, 0x10 &&& 0x10): needed;                                                    \
            (5, 0x20 &&& 0x20): needed;                                                    \
            (6, 0x40 &&& 0x40): needed;                                                    \
            (7, 0x80 &&& 0x80): needed;                                                    \
            default: needless;                                                             \
        }                                                                                  \
    }
    WORKERS(0, 7)
    WORKERS(8, 15)
    WORKERS(16, 23)
    WORKERS(24, 31)
#undef WORKERS

    state needed {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.passing);
        transition accept;
    }

    state needless {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.passing);
        transition select(hdr.passing.flags) {
            BARE &&& BARE: without_lanes;
            default: leave_out;
        }
    }

    // Lanes that a parser has gone over leave only if the deparser emits them. That of Tofino 1's egress ends after 160
    // bytes, among the lanes: so they stay.
    state leave_out {
#if ONE_WORD
        transition accept;
#else
        packet.advance(32 * LANES);
        transition without_lanes;
#endif
    }

    state without_lanes {
        meta.needless = 1;
        transition accept;
    }
}

control PassingEgress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t arrival,
                      in egress_intrinsic_metadata_from_parser_t parsed,
                      inout egress_intrinsic_metadata_for_deparser_t departure,
                      inout egress_intrinsic_metadata_for_output_port_t port) {
    Replication() replication;

    apply {
        if (hdr.passing.isValid()) {
            replication.apply(hdr, arrival.egress_rid, departure);
            if (meta.needless == 1) { leave_out_lanes(hdr); }
        } else if (meta.copy.ingress_port == arrival.egress_port) {
            departure.drop_ctl = 1;
        }
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t departure) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.passing.isValid()) { hdr.ipv4.checksum = ipv4_checksum.update(IPV4_FIELDS(hdr.ipv4)); }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.passing);
    }
}

Pipeline(IngressParser(), PassingIngress(), IngressDeparser(), EgressParser(), PassingEgress(), EgressDeparser()) pipe;
Switch(pipe) main;
