// SPDX-License-Identifier: Apache-2.0
// The switch as a host: it has an address, and answers ARP and ping. So the workers' machines need to know nothing.
#ifndef P4_TNA_OWN_ADDRESS_P4_
#define P4_TNA_OWN_ADDRESS_P4_

#include "../answers.p4"
#include "metadata.p4"

// Is the packet for the switch itself?
control OwnAddress(in headers_t hdr, inout metadata_t meta) {
    @id(1) action set_ours() { meta.to_us = 1; }
    @id(1) table own_address {
        key = { hdr.ipv4.dst_ip: exact @name("ip"); }
        actions = { set_ours; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 16;
    }

    apply { own_address.apply(); }
}

// Answers go out where the question came in, whether the sender's MAC address is listed or not: an unlisted one would
// be asked for at all ports but his own.
control AnswerArp(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t arrival,
                  inout ingress_intrinsic_metadata_for_tm_t manager) {
    @id(9) action answer_arp(mac_t own_mac) {
        turn_arp_round(hdr, own_mac);
        meta.forward = 0;
        manager.ucast_egress_port = arrival.ingress_port;
        manager.bypass_egress = 1;
    }
    @id(8) table question {
        key = {
            hdr.arp.target_ip: exact @name("ip");
            hdr.arp.operation: exact @name("operation");
        }
        actions = { answer_arp; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 16;
    }

    apply { question.apply(); }
}

control AnswerPing(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t arrival,
                   inout ingress_intrinsic_metadata_for_tm_t manager) {
    action turn_round() {
        turn_ping_round(hdr);
        meta.forward = 0;
        manager.ucast_egress_port = arrival.ingress_port;
        manager.bypass_egress = 1;
    }

    apply {
        turn_round();
        // The checksum without the request's type (RFC 1624): 0x0800 more, the carry comes back in.
        if (hdr.icmp.checksum[15:11] == 0x1F) {
            hdr.icmp.checksum = hdr.icmp.checksum + 0x0801;
        } else {
            hdr.icmp.checksum = hdr.icmp.checksum + 0x0800;
        }
    }
}

#endif  // P4_TNA_OWN_ADDRESS_P4_
