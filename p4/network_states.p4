// SPDX-License-Identifier: Apache-2.0
// Included inside of a parser: its states from Ethernet to what IPv4 carries. They go on to a state `udp` of its own.
//
// Anything not understood (VLAN tags, IP options, fragments, IPv6) is left in the payload, as ordinary traffic.

    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_ARP: arp;
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ip_version, hdr.ipv4.header_words, hdr.ipv4.more_fragments,
                          hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, 0, IP_PROTOCOL_ICMP): icmp;
            (4, 5, 0, 0, IP_PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }
