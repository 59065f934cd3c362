// SPDX-License-Identifier: Apache-2.0
// A copy of the result to the worker that it is for.
#ifndef P4_TNA_REPLICATION_P4_
#define P4_TNA_REPLICATION_P4_

#include "../addressing.p4"

control Replication(inout headers_t hdr, in bit<16> replica, inout egress_intrinsic_metadata_for_deparser_t departure) {
    action drop_it() { departure.drop_ctl = 1; }

#include "../receiver_table.p4"

    apply { receiver.apply(); }
}

#endif  // P4_TNA_REPLICATION_P4_
