// jax-passing for v1model (bmv2's simple_switch). The tables that the control plane fills: ../README.md.
#include <core.p4>
#include <v1model.p4>

#include "lane_header.p4"
#include "../headers.p4"
#include "../metadata.p4"
#include "../parser.p4"

#include "neighbours.p4"
#include "forward.p4"
#include "own_address.p4"
#include "../parents.p4"
#include "../job_check.p4"
#include "slot_check.p4"
#include "sticky_flags.p4"
#include "lanes.p4"
#include "next_step.p4"
#include "replication.p4"

parser ParsePacket(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    HostPacket() host_packet;

    state start {
        host_packet.apply(packet, hdr);
        transition accept;
    }
}

// All of the IPv4 header but its checksum.
#define IPV4_FIELDS(ip) { ip.ip_version, ip.header_words, ip.traffic_class, ip.total_bytes, ip.identification, \
                          ip.reserved, ip.dont_fragment, ip.more_fragments, ip.fragment_offset, ip.ttl, ip.protocol, \
                          ip.src_ip, ip.dst_ip }

control CheckIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.udp.isValid(), IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control PassingIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Neighbours() neighbours;
    Forward() forward;
    OwnAddress() own_address;
    AnswerArp() answer_arp;
    AnswerPing() answer_ping;
    Parents() parents;
    JobCheck() job_check;
    SlotCheck() slot_check;
    StickyFlags() sticky_flags;
    Lanes() lanes;
    NextStep() next_step;
    counter(VERDICTS, CounterType.packets) verdicts;

    apply {
        own_address.apply(hdr, meta);
        bool ours = meta.to_us && hdr.udp.isValid() && hdr.udp.dst_port == PASSING_PORT;

        if (ours) {
            if (!hdr.lanes.isValid() || standard.checksum_error == 1) {
                meta.verdict = verdict_t.MALFORMED;
            } else {
                parents.apply(hdr, meta);
                job_check.apply(hdr, meta);
                if (meta.passed) {
                    bit<32> index = (bit<32>)(hdr.passing.slot ++ hdr.passing.version[0:0]);
                    slot_check.apply(hdr, meta, index);
                    sticky_flags.apply(hdr, meta, index);
                    lanes.apply(hdr, meta, index);
                }
            }
            next_step.apply(hdr, meta, standard);
            verdicts.count((bit<32>)(bit<8>)meta.verdict);
        } else {
            neighbours.apply(hdr, standard);
            if (!meta.to_us) {
                forward.apply(hdr, meta, standard);
            } else if (hdr.arp.isValid()) {
                answer_arp.apply(hdr, meta, standard);
            } else if (hdr.icmp.isValid()) {
                answer_ping.apply(hdr, meta, standard);
            } else {
                mark_to_drop(standard);
            }
        }
    }
}

control PassingEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Replication() replication;

    apply {
        if (meta.to_workers) { replication.apply(hdr, standard); }
        if (meta.flooded && standard.egress_port == standard.ingress_port) { mark_to_drop(standard); }
        if (hdr.lanes.isValid() && meta.to_us) { truncate(14 + (bit<32>)IPV4_BYTES); }
    }
}

control SumIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.to_us && hdr.ipv4.isValid(), IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control DeparsePacket(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(ParsePacket(), CheckIpv4(), PassingIngress(), PassingEgress(), SumIpv4(), DeparsePacket()) main;
