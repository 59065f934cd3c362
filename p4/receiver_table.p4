// SPDX-License-Identifier: Apache-2.0
// Included inside of a control with a parameter `replica` and an action `drop_it`: a copy of the result for each worker
// of the job. The job's multicast group has a node for each, whose replication number is the worker, and whose port
// leads there.

    @id(8) action to_worker(mac_t mac, ip_t ip, bit<16> udp_port) { address_to(hdr, mac, ip, udp_port); }
    @id(7) table receiver {
        key = {
            hdr.passing.job: exact @name("job");
            replica: exact @name("worker");
        }
        actions = { to_worker; @defaultonly drop_it; }
        const default_action = drop_it;
        size = 16 * JOBS_MAX;
    }
