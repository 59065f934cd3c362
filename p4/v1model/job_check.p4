// SPDX-License-Identifier: Apache-2.0
// Does the packet belong to a job here, and did the right one send it? Jobs, workers and their addresses stand in
// tables that the control plane fills; a packet only names its entry.
#ifndef P4_V1MODEL_JOB_CHECK_P4_
#define P4_V1MODEL_JOB_CHECK_P4_

#include "../headers.p4"
#include "metadata.p4"

control JobCheck(inout headers_t hdr, inout metadata_t meta) {
    // The one who may send this packet, and its epoch and slots.
    ip_t sender_ip = 0;
    bit<16> sender_port = 0;
    bit<16> right_epoch = 0;
    bit<16> slots_from = 0;

    @id(4) action set_job(bit<16> epoch, bit<32> owner, bit<16> slot_first, bit<16> slot_count, bitmap_t workers,
                   bit<16> group, bit<32> reach) {
        meta.job.epoch = epoch;
        meta.job.owner = owner;
        meta.job.slot_first = slot_first;
        meta.job.slot_count = slot_count;
        meta.job.workers = workers;
        meta.job.group = group;
        meta.job.reach = reach;
        right_epoch = epoch;
        slots_from = slot_first;
    }
    @id(3) table job {
        key = { meta.job.number: exact @name("job"); }
        actions = { set_job; @defaultonly NoAction; }
        const default_action = NoAction;
        size = JOBS_MAX;
    }

    @id(5) action set_worker(bitmap_t worker_bit, ip_t ip, bit<16> udp_port) {
        meta.worker_bit = worker_bit;
        sender_ip = ip;
        sender_port = udp_port;
    }
    @id(4) table worker {
        key = {
            meta.job.number: exact @name("job");
            hdr.passing.worker: exact @name("worker");
        }
        actions = { set_worker; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 16 * JOBS_MAX;
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
        job_known = job.apply().hit;
        if (meta.from_parent) {
            worker_known = hdr.passing.worker == EVERY_WORKER;
            sender_ip = meta.parent.ip;
            sender_port = meta.parent.udp_port;
            right_epoch = meta.parent.epoch;
            slots_from = meta.parent.slot_first;
        } else {
            worker_known = worker.apply().hit;
        }

        // A slot before the first wraps to a large offset: no partition reaches beyond 32,768.
        bit<16> offset = hdr.passing.slot - slots_from;
        same_epoch = hdr.passing.epoch == right_epoch;
        same_source = hdr.ipv4.src_ip == sender_ip && hdr.udp.src_port == sender_port;
        slot_inside = offset < meta.job.slot_count;
        type_taken = hdr.passing.type == packet_type_t.CONTRIBUTION || meta.from_parent;
        checks.apply();

        // From here on the packet names our job, epoch and slot, whichever its sender.
        hdr.passing.job = meta.job.number;
        hdr.passing.epoch = meta.job.epoch;
        hdr.passing.slot = meta.job.slot_first + offset;
    }
}

#endif  // P4_V1MODEL_JOB_CHECK_P4_
