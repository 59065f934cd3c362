// Does the packet belong to a job here, and did the right one send it? Jobs, workers and their addresses stand in
// tables that the control plane fills; a packet only names its entry.
#ifndef P4_JOB_CHECK_P4_
#define P4_JOB_CHECK_P4_

#include "headers.p4"
#include "metadata.p4"

control JobCheck(inout headers_t hdr, inout metadata_t meta) {
    // Who may send this packet, and in which epoch and slots.
    ip_t ip = 0;
    bit<16> udp_port = 0;
    bit<16> epoch = 0;
    bit<16> slot_first = 0;

    action set_job(bit<16> epoch_, bit<32> admission, bit<16> slot_first_, bit<16> slot_count, bitmap_t workers,
                   bit<16> group) {
        meta.job.epoch = epoch_;
        meta.job.admission = admission;
        meta.job.slot_first = slot_first_;
        meta.job.slot_count = slot_count;
        meta.job.workers = workers;
        meta.job.group = group;
        epoch = epoch_;
        slot_first = slot_first_;
    }
    table job {
        key = { meta.job.number: exact @name("job"); }
        actions = { set_job; @defaultonly NoAction; }
        const default_action = NoAction;
        size = JOBS_MAX;
    }

    action set_worker(bitmap_t bit_, ip_t ip_, bit<16> udp_port_) {
        meta.worker_bit = bit_;
        ip = ip_;
        udp_port = udp_port_;
    }
    table worker {
        key = {
            meta.job.number: exact @name("job");
            hdr.passing.worker: exact @name("worker");
        }
        actions = { set_worker; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 16 * JOBS_MAX;
    }

    // A tree: the job's parent, and which job here a job of the parent is.
    action set_parent(bit<16> job_, bit<16> epoch_, bit<16> worker_, bit<16> slot_first_, mac_t mac, ip_t ip_,
                      bit<16> udp_port_, bit<9> port) {
        meta.parent = { job_, epoch_, worker_, slot_first_, mac, ip_, udp_port_, port };
    }
    table parent {
        key = { meta.job.number: exact @name("job"); }
        actions = { set_parent; @defaultonly NoAction; }
        const default_action = NoAction;
        size = JOBS_MAX;
    }

    action set_own_job(bit<16> job_) { meta.job.number = job_; }
    table parent_job {
        key = { hdr.passing.job: exact @name("job"); }
        actions = { set_own_job; @defaultonly NoAction; }
        const default_action = NoAction;
        size = JOBS_MAX;
    }

    bool job_known;
    bool worker_known;
    bool same_epoch;
    bool same_source;
    bool slot_inside;
    bool type_taken;

    action refuse(verdict_t verdict) {
        meta.verdict = verdict;
        meta.passed = false;
    }
    // The first row that holds names the verdict.
    table checks {
        key = {
            job_known: ternary;
            same_epoch: ternary;
            worker_known: ternary;
            same_source: ternary;
            slot_inside: ternary;
            type_taken: ternary;
        }
        actions = { refuse; NoAction; }
        const entries = {
            // job    epoch  worker source slot   type
            (false, _,     _,     _,     _,     _): refuse(verdict_t.FOREIGN_JOB);
            (_,     false, _,     _,     _,     _): refuse(verdict_t.FOREIGN_EPOCH);
            (_,     _,     false, _,     _,     _): refuse(verdict_t.FOREIGN_WORKER);
            (_,     _,     _,     false, _,     _): refuse(verdict_t.FOREIGN_SOURCE);
            (_,     _,     _,     _,     false, _): refuse(verdict_t.FOREIGN_SLOT);
            (_,     _,     _,     _,     _, false): refuse(verdict_t.NOT_CONTRIBUTION);
        }
        const default_action = NoAction;
    }

    apply {
        meta.passed = true;
        meta.worker_bit = 0;
        meta.job.number = hdr.passing.job;
        if (hdr.passing.type == packet_type_t.RESULT) { meta.from_parent = parent_job.apply().hit; }
        job_known = job.apply().hit;
        meta.has_parent = parent.apply().hit;
        if (meta.from_parent) {
            worker_known = hdr.passing.worker == EVERY_WORKER;
            ip = meta.parent.ip;
            udp_port = meta.parent.udp_port;
            epoch = meta.parent.epoch;
            slot_first = meta.parent.slot_first;
        } else {
            worker_known = worker.apply().hit;
        }

        // A slot before the first wraps to a large offset: no partition reaches beyond 32,768.
        bit<16> offset = hdr.passing.slot - slot_first;
        same_epoch = hdr.passing.epoch == epoch;
        same_source = hdr.ipv4.src_ip == ip && hdr.udp.src_port == udp_port;
        slot_inside = offset < meta.job.slot_count;
        type_taken = hdr.passing.type == packet_type_t.CONTRIBUTION || meta.from_parent;
        checks.apply();

        // From here on the packet speaks of our job, epoch and slot, whoever sent it.
        hdr.passing.job = meta.job.number;
        hdr.passing.epoch = meta.job.epoch;
        hdr.passing.slot = meta.job.slot_first + offset;
    }
}

#endif  // P4_JOB_CHECK_P4_
