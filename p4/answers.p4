// SPDX-License-Identifier: Apache-2.0
// The switch answers as a host. ICMP's checksum is left to the architecture: each adds in its own way.
#ifndef P4_ANSWERS_P4_
#define P4_ANSWERS_P4_

#include "headers.p4"

action turn_arp_round(inout headers_t hdr, in mac_t own_mac) {
    ip_t own_ip = hdr.arp.target_ip;
    hdr.ethernet.dst_mac = hdr.arp.sender_mac;
    hdr.ethernet.src_mac = own_mac;
    hdr.arp.operation = ARP_REPLY;
    hdr.arp.target_mac = hdr.arp.sender_mac;
    hdr.arp.target_ip = hdr.arp.sender_ip;
    hdr.arp.sender_mac = own_mac;
    hdr.arp.sender_ip = own_ip;
}

action turn_ping_round(inout headers_t hdr) {
    mac_t own_mac = hdr.ethernet.dst_mac;
    ip_t own_ip = hdr.ipv4.dst_ip;
    hdr.ethernet.dst_mac = hdr.ethernet.src_mac;
    hdr.ethernet.src_mac = own_mac;
    hdr.ipv4.dst_ip = hdr.ipv4.src_ip;
    hdr.ipv4.src_ip = own_ip;
    hdr.ipv4.ttl = 64;
    hdr.icmp.type = ECHO_REPLY;
}

#endif  // P4_ANSWERS_P4_
