// SPDX-License-Identifier: Apache-2.0
// The switch as a host: it has an address, and answers ARP and ping. So the workers' machines need to know nothing.
#ifndef P4_V1MODEL_OWN_ADDRESS_P4_
#define P4_V1MODEL_OWN_ADDRESS_P4_

#include "../answers.p4"
#include "metadata.p4"

const mac_t BROADCAST_MAC = 0xFFFFFFFFFFFF;
const bit<16> ARP_REQUEST = 1;

// Is the packet for the switch itself?
control OwnAddress(in headers_t hdr, inout metadata_t meta) {
    ip_t target = 0;

    @id(1) action set_own_mac(mac_t mac) { meta.own_mac = mac; }
    @id(1) table own_address {
        key = { target: exact @name("ip"); }
        actions = { set_own_mac; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 16;
    }

    apply {
        if (hdr.arp.isValid()) {
            target = hdr.arp.target_ip;
        } else if (hdr.ipv4.isValid()) {
            target = hdr.ipv4.dst_ip;
        }
        if (own_address.apply().hit) {
            meta.to_us = hdr.ethernet.dst_mac == meta.own_mac ||
                         hdr.arp.isValid() && hdr.ethernet.dst_mac == BROADCAST_MAC;
        }
    }
}

// Answers go out where the question came in.
control AnswerArp(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.arp.hardware_type == 1 && hdr.arp.protocol_type == ETHERTYPE_IPV4 && hdr.arp.operation == ARP_REQUEST) {
            turn_arp_round(hdr, meta.own_mac);
            standard.egress_spec = standard.ingress_port;
        } else {
            mark_to_drop(standard);
        }
    }
}

control AnswerPing(inout headers_t hdr, inout standard_metadata_t standard) {
    apply {
        if (hdr.icmp.type == ECHO_REQUEST && hdr.icmp.code == 0) {
            turn_ping_round(hdr);
            // The checksum gains what the message loses with the request's type, 0x0800 (RFC 1141). It comes out as
            // 0xFFFF where 0 would do as well, never the other way round: right even for a message of zeros.
            bit<17> sum = (bit<17>)hdr.icmp.checksum + 0x0800;
            hdr.icmp.checksum = sum[15:0] + (bit<16>)sum[16:16];
            standard.egress_spec = standard.ingress_port;
        } else {
            mark_to_drop(standard);
        }
    }
}

#endif  // P4_V1MODEL_OWN_ADDRESS_P4_
