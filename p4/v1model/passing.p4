// SPDX-License-Identifier: Apache-2.0
// jax-passing for v1model (bmv2's simple_switch). The tables that the control plane fills: ../README.md.
#include <core.p4>
#include <v1model.p4>

#include "lane_header.p4"
#include "../headers.p4"
#include "metadata.p4"
#include "parser.p4"

#include "neighbours.p4"
#include "forward.p4"
#include "own_address.p4"
#include "aggregate.p4"
#include "replication.p4"

control CheckSums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.udp.isValid(), IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
        // A checksum of 0: the sender left it out. Over the checksum as well, which leaves 0: UDP writes 0 as 0xFFFF.
        verify_checksum(meta.well_formed == 1 && hdr.udp.checksum != 0 && hdr.lanes.isValid(), { UDP_FIELDS(hdr) },
                        meta.zero, HashAlgorithm.csum16);
        verify_checksum(meta.well_formed == 1 && hdr.udp.checksum != 0 && !hdr.lanes.isValid(),
                        { BARE_UDP_FIELDS(hdr) }, meta.zero, HashAlgorithm.csum16);
    }
}

control PassingIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Neighbours() neighbours;
    OwnAddress() own_address;
    Forward() forward;
    AnswerArp() answer_arp;
    AnswerPing() answer_ping;
    Aggregate() aggregate;

    apply {
        if (!hdr.passing.isValid()) { neighbours.apply(hdr, standard); }
        own_address.apply(hdr, meta);
        if (!meta.to_us) {
            forward.apply(hdr, meta, standard);
        } else if (hdr.arp.isValid()) {
            answer_arp.apply(hdr, meta, standard);
        } else if (hdr.icmp.isValid()) {
            answer_ping.apply(hdr, standard);
        } else if (hdr.udp.isValid() && hdr.udp.dst_port == PASSING_PORT) {
            aggregate.apply(hdr, meta, standard);
        } else {
            mark_to_drop(standard);
        }
    }
}

control PassingEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Replication() replication;

    apply {
        if (meta.to_workers) { replication.apply(hdr, meta, standard.egress_rid, standard); }
        if (meta.flooded && standard.egress_port == standard.ingress_port) { mark_to_drop(standard); }
        if (meta.well_formed == 1 && meta.to_us) { truncate(14 + (bit<32>)hdr.ipv4.total_bytes); }
    }
}

control SumIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        bool ours = meta.to_us && hdr.ipv4.isValid();
        update_checksum(ours, IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control DeparsePacket(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(ParsePacket(), CheckSums(), PassingIngress(), PassingEgress(), SumIpv4(), DeparsePacket()) main;
