// SPDX-License-Identifier: Apache-2.0
// The ports of hosts, learned from their ordinary traffic for the control plane, which knows a worker by its IP address
// alone. A host that has joined over TCP through this switch has been seen.
#ifndef P4_V1MODEL_NEIGHBOURS_P4_
#define P4_V1MODEL_NEIGHBOURS_P4_

#include "../headers.p4"

#define NEIGHBOURS 4096

struct neighbour_t {
    ip_t ip;
    mac_t mac;
    bit<9> port;
}

control Neighbours(in headers_t hdr, in standard_metadata_t standard) {
    // By the address's low 12 bits: so the hosts of one network (/20) never displace each other.
    @id(6) register<ip_t>(NEIGHBOURS) ip;
    @id(7) register<mac_t>(NEIGHBOURS) mac;
    @id(8) register<bit<9>>(NEIGHBOURS) port;

    neighbour_t seen;
    neighbour_t held;

    apply {
        // A header that the frame lacks (IPv6, LLDP, STP, a VLAN tag) may hold the values of an earlier frame.
        seen.ip = 0;
        if (hdr.arp.isValid() && hdr.arp.hardware_type == 1 && hdr.arp.protocol_type == ETHERTYPE_IPV4) {
            seen.ip = hdr.arp.sender_ip;
        } else if (hdr.ipv4.isValid()) {
            seen.ip = hdr.ipv4.src_ip;
        }
        seen.mac = hdr.ethernet.src_mac;
        seen.port = standard.ingress_port;
        bit<32> index = (bit<32>)seen.ip[11:0];
        ip.read(held.ip, index);
        mac.read(held.mac, index);
        port.read(held.port, index);
        if (seen.ip != 0 && seen != held) {
            ip.write(index, seen.ip);
            mac.write(index, seen.mac);
            port.write(index, seen.port);
        }
    }
}

#endif  // P4_V1MODEL_NEIGHBOURS_P4_
