// A copy of the result for each worker of the job: the job's multicast group, whose number is the job's, has a node for
// each, whose replication number is the worker, and whose port leads there. (Flooded packets have number 65535.)
#ifndef P4_TNA_REPLICATION_P4_
#define P4_TNA_REPLICATION_P4_

#include "../addressing.p4"

control Replication(inout headers_t hdr, in bit<16> replica) {
    action to_worker(mac_t mac, ip_t ip, bit<16> udp_port) { address_to(hdr, mac, ip, udp_port); }

    table receiver {
        key = {
            hdr.passing.job: exact @name("job");
            replica: exact @name("worker");
        }
        actions = { to_worker; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 16 * JOBS_MAX;
    }

    apply { receiver.apply(); }
}

#endif  // P4_TNA_REPLICATION_P4_
