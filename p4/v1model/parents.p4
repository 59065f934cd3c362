// SPDX-License-Identifier: Apache-2.0
// Switches in a tree: a job here may be a part of a job of the switch above, its parent, where we are one worker.
#ifndef P4_V1MODEL_PARENTS_P4_
#define P4_V1MODEL_PARENTS_P4_

#include "../headers.p4"
#include "metadata.p4"

control Parents(in headers_t hdr, inout metadata_t meta) {
    // A job of the parent is one of our jobs, under its own number, which its results bear.
    @id(6) action set_own_job(bit<16> job) { meta.job.number = job; }
    @id(5) table parent_job {
        key = { hdr.passing.job: exact @name("job"); }
        actions = { set_own_job; @defaultonly NoAction; }
        const default_action = NoAction;
        size = JOBS_MAX;
    }

    @id(7) action set_parent(bit<16> job, bit<16> epoch, bit<16> worker, bit<16> slot_first, mac_t mac, ip_t ip,
                      bit<16> udp_port, bit<9> port) {
        meta.parent = { job, epoch, worker, slot_first, mac, ip, udp_port, port };
    }
    @id(6) table parent {
        key = { meta.job.number: exact @name("job"); }
        actions = { set_parent; @defaultonly NoAction; }
        const default_action = NoAction;
        size = JOBS_MAX;
    }

    apply {
        meta.job.number = hdr.passing.job;
        meta.from_parent = false;
        if (hdr.passing.type == packet_type_t.RESULT) { meta.from_parent = parent_job.apply().hit; }
        meta.has_parent = parent.apply().hit;
    }
}

#endif  // P4_V1MODEL_PARENTS_P4_
