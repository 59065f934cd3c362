// SPDX-License-Identifier: Apache-2.0
// Does the packet belong to a job here, and did the right one send it?
//
// One ternary table, for stages are scarce: the control plane fills in, for each job, from the highest priority on,
//   the packets that are accepted, one row a worker;
//   for each worker the same without the type (not_contribution), then without the slot (foreign_slot), then without
//   the source (foreign_source);
//   the job and epoch alone (foreign_worker); the job alone (foreign_epoch).
// So the first row that holds names the verdict, as in every data plane. The pass is FIRST in all these rows but the
// first kind, which later passes match as well. A job with a parent adds: its results, by the parent's numbers
// (from_parent), what falls short of that as above, and the same packet in its second pass (answer).
// jax_passing/switch/data_planes/tofino_admission.py makes these rows.
#ifndef P4_TNA_ADMISSION_P4_
#define P4_TNA_ADMISSION_P4_

#include "metadata.p4"

#define ADMISSION_ROWS 2048  // four a worker, and two a job

control Admission(inout headers_t hdr, inout metadata_t meta) {
    // The job and epoch that wrote the slot version. Another one's is void: so nothing has to be cleared when a
    // job joins. Epochs aren't 0, the value of a register that nobody has written.
    Register<bit<32>, index_t>(VERSIONS, 0) owner;

    RegisterAction<bit<32>, index_t, bit<1>>(owner) claim_it = {
        void apply(inout bit<32> held, out bit<1> fresh) {
            fresh = 0;
            if (held != hdr.passing.job ++ hdr.passing.epoch) { fresh = 1; }
            held = hdr.passing.job ++ hdr.passing.epoch;
        }
    };
    RegisterAction<bit<32>, index_t, bit<1>>(owner) compare_it = {
        void apply(inout bit<32> held, out bit<1> fresh) {
            fresh = 0;
            if (held != hdr.passing.job ++ hdr.passing.epoch) { fresh = 1; }
        }
    };

    // The slot version's index in registers: for this stage, and for the next ones.
    Hash<index_t>(HashAlgorithm_t.IDENTITY) cell;
    Hash<index_t>(HashAlgorithm_t.IDENTITY) index;

    @id(10) action accept(missing_t worker, missing_t others, bit<16> group) {
        meta.accepted = 1;
        meta.group = group;
        meta.index = index.get({ hdr.passing.slot[14:0], hdr.passing.version[0:0] });
        meta.worker = worker;
        meta.others = others;
        meta.fresh = claim_it.execute(cell.get({ hdr.passing.slot[14:0], hdr.passing.version[0:0] }));
    }
    @id(11) action answer(bit<16> group) {
        meta.accepted = 1;
        meta.group = group;
        meta.index = index.get({ hdr.passing.slot[14:0], hdr.passing.version[0:0] });
        meta.fresh = compare_it.execute(cell.get({ hdr.passing.slot[14:0], hdr.passing.version[0:0] }));
    }
    // The parent's numbers become ours; `slot_shift` is our first slot minus the parent's, modulo 2^16.
    @id(12) action from_parent(bit<16> job, bit<16> epoch, bit<16> slot_shift) {
        hdr.passing.job = job;
        hdr.passing.epoch = epoch;
        hdr.passing.slot = hdr.passing.slot + slot_shift;
        meta.pass = pass_t.TRANSLATED;
    }
    @id(13) action refuse(verdict_t verdict) { meta.verdict = verdict; }

    @id(9) table admission {
        key = {
            meta.pass: ternary @name("pass");
            hdr.ipv4.dst_ip: ternary @name("own_ip");
            hdr.passing.type: ternary @name("type");
            hdr.passing.job: ternary @name("job");
            hdr.passing.epoch: ternary @name("epoch");
            hdr.passing.worker: ternary @name("worker");
            hdr.ipv4.src_ip: ternary @name("ip");
            hdr.udp.src_port: ternary @name("udp_port");
            hdr.passing.slot: ternary @name("slot");
        }
        actions = { accept; answer; from_parent; refuse; }
        const default_action = refuse(verdict_t.FOREIGN_JOB);
        size = ADMISSION_ROWS;
    }

    apply { admission.apply(); }
}

#endif  // P4_TNA_ADMISSION_P4_
