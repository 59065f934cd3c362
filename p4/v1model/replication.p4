// SPDX-License-Identifier: Apache-2.0
// A copy of the result for each worker of the job: the job's multicast group has a node for each, whose replication
// number is the worker, and whose port leads there.
#ifndef P4_V1MODEL_REPLICATION_P4_
#define P4_V1MODEL_REPLICATION_P4_

#include "../addressing.p4"

control Replication(inout headers_t hdr, inout standard_metadata_t standard) {
    @id(8) action to_worker(mac_t mac, ip_t ip, bit<16> udp_port) { address_to(hdr, mac, ip, udp_port); }
    action drop_it() { mark_to_drop(standard); }

    @id(7) table receiver {
        key = {
            hdr.passing.job: exact @name("job");
            standard.egress_rid: exact @name("worker");
        }
        actions = { to_worker; @defaultonly drop_it; }
        const default_action = drop_it;
        size = 16 * JOBS_MAX;
    }

    apply { receiver.apply(); }
}

#endif  // P4_V1MODEL_REPLICATION_P4_
