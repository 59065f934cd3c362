// SPDX-License-Identifier: Apache-2.0
// A copy of the result to the worker that it is for.
#ifndef P4_V1MODEL_REPLICATION_P4_
#define P4_V1MODEL_REPLICATION_P4_

#include "../addressing.p4"
#include "metadata.p4"

control Replication(inout headers_t hdr, in metadata_t meta, in bit<16> replica,
                    inout standard_metadata_t departure) {
    action drop_it() { mark_to_drop(departure); }

#include "../receiver_table.p4"

    apply {
        receiver.apply();
        if ((meta.no_result >> (bit<8>)replica)[0:0] == 1) { leave_out_lanes(hdr); }
    }
}

#endif  // P4_V1MODEL_REPLICATION_P4_
