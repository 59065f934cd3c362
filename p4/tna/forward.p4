// SPDX-License-Identifier: Apache-2.0
// Ordinary traffic and what we send to one: by its destination's MAC address; to all ports if that isn't known, but
// never back.
#ifndef P4_TNA_FORWARD_P4_
#define P4_TNA_FORWARD_P4_

#include "metadata.p4"

control Forward(in headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t arrival,
                inout ingress_intrinsic_metadata_for_tm_t manager) {
    @id(2) action to_port(bit<9> port) {
        manager.ucast_egress_port = port;
        manager.bypass_egress = 1;
    }
    @id(3) action flood() {
        meta.copy.setValid();
        meta.copy.result = 0;
        meta.copy.ingress_port = arrival.ingress_port;
        manager.mcast_grp_a = ALL_PORTS;
    }

#include "../forward_table.p4"

    apply { forward.apply(); }
}

#endif  // P4_TNA_FORWARD_P4_
