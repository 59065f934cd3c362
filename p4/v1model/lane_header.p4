// SPDX-License-Identifier: Apache-2.0
// Lanes as v1model sums them: in groups of up to 64, each group one wide integer (p4c's widest has 2,048 bits).
#ifndef P4_V1MODEL_LANE_HEADER_P4_
#define P4_V1MODEL_LANE_HEADER_P4_

#include "../types.p4"

#if LANES < 64
#define GROUP_LANES LANES
#else
#define GROUP_LANES 64
#endif

// X(g) for each group.
#if LANES <= 64
#define EACH_GROUP(X) X(0)
#elif LANES == 128
#define EACH_GROUP(X) X(0) X(1)
#elif LANES == 256
#define EACH_GROUP(X) X(0) X(1) X(2) X(3)
#else
#error "LANES is a power of two, at most 256"
#endif

typedef bit<(32 * GROUP_LANES)> group_t;

header lanes_h {
#define FIELD(g) group_t group##g;
    EACH_GROUP(FIELD)
#undef FIELD
}

// UDP's checksum is over the pseudo header and the packet, with the checksum itself.
#define GROUP_FIELD(g) , hdr.lanes.group##g
#define BARE_UDP_FIELDS(hdr)                                                                                         \
      hdr.ipv4.src_ip, hdr.ipv4.dst_ip, 8w0, hdr.ipv4.protocol, hdr.udp.udp_bytes, hdr.udp.src_port,                 \
      hdr.udp.dst_port, hdr.udp.udp_bytes, hdr.udp.checksum, hdr.passing.magic, hdr.passing.protocol,                \
      hdr.passing.type, hdr.passing.flags, hdr.passing.job, hdr.passing.epoch, hdr.passing.worker, hdr.passing.slot, \
      hdr.passing.sequence, hdr.passing.version, hdr.passing.lane_format, hdr.passing.element_count
#define UDP_FIELDS(hdr) BARE_UDP_FIELDS(hdr) EACH_GROUP(GROUP_FIELD)

#endif  // P4_V1MODEL_LANE_HEADER_P4_
