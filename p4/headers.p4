// SPDX-License-Identifier: Apache-2.0
// Headers, from Ethernet to the lanes. The architecture defines `lanes_h` before it includes this file: how lanes are
// best cut into fields is its own affair. The bytes are the same, LANES times 32 bits.
#ifndef P4_HEADERS_P4_
#define P4_HEADERS_P4_

#include "types.p4"

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> IP_PROTOCOL_ICMP = 1;
const bit<8> IP_PROTOCOL_UDP = 17;
const bit<16> ARP_REPLY = 2;
const bit<8> ECHO_REQUEST = 8;
const bit<8> ECHO_REPLY = 0;

header ethernet_h {
    mac_t dst_mac;
    mac_t src_mac;
    bit<16> ether_type;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8> hardware_bytes;
    bit<8> protocol_bytes;
    bit<16> operation;
    mac_t sender_mac;
    ip_t sender_ip;
    mac_t target_mac;
    ip_t target_ip;
}

header ipv4_h {
    bit<4> ip_version;
    bit<4> header_words;
    bit<8> traffic_class;
    bit<16> total_bytes;
    bit<16> identification;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ip_t src_ip;
    ip_t dst_ip;
}

// All of the IPv4 header but its checksum.
#define IPV4_FIELDS(ip) { ip.ip_version, ip.header_words, ip.traffic_class, ip.total_bytes, ip.identification, \
                          ip.reserved, ip.dont_fragment, ip.more_fragments, ip.fragment_offset, ip.ttl, ip.protocol, \
                          ip.src_ip, ip.dst_ip }

header icmp_h {
    bit<8> type;
    bit<8> code;
    bit<16> checksum;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> udp_bytes;
    bit<16> checksum;
}

//  0                   1                   2                   3
//  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
// +---------------+---------------+---------------+---------------+
// |     magic     |    protocol   |  packet type  |     flags     |
// +---------------+---------------+---------------+---------------+
// |              job              |             epoch             |
// +-------------------------------+-------------------------------+
// |             worker            |              slot             |
// +-------------------------------+-------------------------------+
// |                            sequence                           |
// +---------------+---------------+-------------------------------+
// |    version    |  lane format  |         element count         |
// +---------------+---------------+-------------------------------+
header passing_h {
    bit<8> magic;
    bit<8> protocol;
    packet_type_t type;
    bit<8> flags;
    bit<16> job;
    bit<16> epoch;
    bit<16> worker;
    bit<16> slot;
    bit<32> sequence;
    bit<8> version;
    lane_format_t lane_format;
    bit<16> element_count;
}

// Lengths of a packet of this protocol, as IPv4 and UDP must state them.
const bit<16> UDP_BYTES = 8 + 20 + 4 * LANES;
const bit<16> IPV4_BYTES = 20 + UDP_BYTES;
const bit<16> BARE_UDP_BYTES = 8 + 20;  // and of one without lanes
const bit<16> BARE_IPV4_BYTES = 20 + BARE_UDP_BYTES;

struct headers_t {
    ethernet_h ethernet;
    arp_h arp;
    ipv4_h ipv4;
    icmp_h icmp;
    udp_h udp;
    passing_h passing;
    lanes_h lanes;
}

#endif  // P4_HEADERS_P4_
