// SPDX-License-Identifier: Apache-2.0
// A copy of the result for each worker of the job: the job's multicast group has a node for each, whose replication
// number is the worker, and whose port leads there.
#ifndef P4_TNA_REPLICATION_P4_
#define P4_TNA_REPLICATION_P4_

#include "../addressing.p4"

control Replication(inout headers_t hdr, in bit<16> replica,
                    inout egress_intrinsic_metadata_for_deparser_t departure) {
    @id(8) action to_worker(mac_t mac, ip_t ip, bit<16> udp_port) { address_to(hdr, mac, ip, udp_port); }

    action drop_it() { departure.drop_ctl = 1; }

    @id(7) table receiver {
        key = {
            hdr.passing.job: exact @name("job");
            replica: exact @name("worker");
        }
        actions = { to_worker; @defaultonly drop_it; }
        const default_action = drop_it;
        size = 16 * JOBS_MAX;
    }

    apply { receiver.apply(); }
}

#endif  // P4_TNA_REPLICATION_P4_
