// SPDX-License-Identifier: Apache-2.0
// A packet that was sent to us leaves for another.
#ifndef P4_ADDRESSING_P4_
#define P4_ADDRESSING_P4_

#include "headers.p4"

// From the address that it was sent to. The UDP checksum is left out (IPv4 allows it): few switches can compute it over
// all lanes at line rate. Each link has a CRC of its own.
action address_to(inout headers_t hdr, in mac_t mac, in ip_t ip, in bit<16> udp_port) {
    hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
    hdr.ethernet.dst_mac = mac;
    hdr.ipv4.src_ip = hdr.ipv4.dst_ip;
    hdr.ipv4.dst_ip = ip;
    hdr.ipv4.ttl = 64;
    hdr.udp.src_port = hdr.udp.dst_port;
    hdr.udp.dst_port = udp_port;
    hdr.udp.checksum = 0;
}

// A contribution whose lanes are the sum of all becomes the result.
action make_result(inout headers_t hdr) {
    hdr.passing.type = packet_type_t.RESULT;
    hdr.passing.worker = EVERY_WORKER;
}

// The result, for a worker that needs no lanes of it.
action leave_out_lanes(inout headers_t hdr) {
    hdr.lanes.setInvalid();
    hdr.passing.flags = hdr.passing.flags | (BARE | NO_RESULT);
    hdr.udp.udp_bytes = BARE_UDP_BYTES;
    hdr.ipv4.total_bytes = BARE_IPV4_BYTES;
}

#endif  // P4_ADDRESSING_P4_
