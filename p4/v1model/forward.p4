// SPDX-License-Identifier: Apache-2.0
// Ordinary traffic, by its destination's MAC address; to all ports if that isn't known, but never back.
#ifndef P4_V1MODEL_FORWARD_P4_
#define P4_V1MODEL_FORWARD_P4_

#include "../headers.p4"
#include "metadata.p4"

control Forward(in headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    @id(2) action to_port(bit<9> port) { standard.egress_spec = port; }
    @id(3) action flood() {
        standard.mcast_grp = ALL_PORTS;
        meta.flooded = true;
    }

#include "../forward_table.p4"

    apply { forward.apply(); }
}

#endif  // P4_V1MODEL_FORWARD_P4_
