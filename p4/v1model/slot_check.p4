// SPDX-License-Identifier: Apache-2.0
// The sequence that the slot version holds, and the workers added to it, decide what becomes of this packet. So does
// how far the job is: no packet is taken that lies further ahead than a worker can be.
#ifndef P4_V1MODEL_SLOT_CHECK_P4_
#define P4_V1MODEL_SLOT_CHECK_P4_

#include "../headers.p4"
#include "metadata.p4"

// A packet's sequence, seen from the one that is held.
enum bit<2> age_t {
    PAST = 0,
    SAME = 1,
    NEWER = 2,
    TOO_FAR = 3
}

control SlotCheck(in headers_t hdr, inout metadata_t meta, in bit<32> index) {
    // Whose slot it is. Another owner's numbers in it are void: so nothing has to be cleared when a job joins.
    @id(1) register<bit<32>>(VERSIONS) owner;
    @id(2) register<bit<32>>(VERSIONS) sequence;
    @id(3) register<bit<32>>(VERSIONS) bitmap_low;  // in halves: bmv2's server can tell no number above 2^63 - 1
    @id(4) register<bit<32>>(VERSIONS) bitmap_high;
    register<bit<8>>(VERSIONS) lane_format;
    @id(5) register<bit<1>>(VERSIONS) answered;  // the parent's result is held, no longer our sum
    register<bitmap_t>(VERSIONS) no_result;      // the workers that need no lanes of the result

    // The furthest sequence of a job to which all workers have contributed, by the job's first slot, and whose it is.
    register<bit<32>>(SLOTS) completed;
    register<bit<32>>(SLOTS) completed_owner;

    bit<32> held_completed;
    bit<32> held_completed_owner;
    bit<32> held_owner;
    bit<32> held_sequence;
    bit<32> held_low;
    bit<32> held_high;
    bitmap_t bitmap;
    bit<8> held_format;
    bit<1> held_answered;

    age_t age;
    bool same_format;
    bool again;
    bool full;
    bool lacks_lanes;

    action refuse(verdict_t verdict) {
        meta.verdict = verdict;
        meta.step = state_step_t.NONE;
    }
    action write_bitmaps() {
        bitmap_low.write(index, bitmap[31:0]);
        bitmap_high.write(index, bitmap[63:32]);
        no_result.write(index, meta.no_result);
    }
    action first(verdict_t verdict) {
        meta.verdict = verdict;
        meta.step = state_step_t.WRITE;
        owner.write(index, meta.job.owner);
        sequence.write(index, hdr.passing.sequence);
        lane_format.write(index, (bit<8>)hdr.passing.lane_format);
        answered.write(index, 0);
        write_bitmaps();
    }
    action join(verdict_t verdict) {
        meta.verdict = verdict;
        meta.step = state_step_t.JOIN;
        write_bitmaps();
    }
    action answer(verdict_t verdict) {
        meta.verdict = verdict;
        meta.step = state_step_t.WRITE;
        answered.write(index, 1);
    }
    action read(verdict_t verdict) {
        meta.verdict = verdict;
        meta.step = state_step_t.READ;
    }

    table verdict {
        key = {
            hdr.passing.type: exact;
            age: exact;
            same_format: ternary;
            again: ternary;            // this worker was added before
            full: ternary;             // no worker is missing, this one counted
            meta.has_parent: ternary;
            held_answered: ternary;
            lacks_lanes: ternary;      // that a worker needs
        }
        actions = { refuse; first; join; answer; read; }
        const entries = {
            // Contributions.              format again  full   parent answered lacks
            (packet_type_t.CONTRIBUTION, age_t.TOO_FAR, _, _, _, _, _, _): refuse(verdict_t.TOO_FAR);
            (packet_type_t.CONTRIBUTION, age_t.PAST,  _, _, _, _, _, _): refuse(verdict_t.STALE);

            (packet_type_t.CONTRIBUTION, age_t.NEWER, _, _, false, _, _, _): first(verdict_t.ADDED);
            (packet_type_t.CONTRIBUTION, age_t.NEWER, _, _, true, false, _, _): first(verdict_t.COMPLETE);
            (packet_type_t.CONTRIBUTION, age_t.NEWER, _, _, true, true, _, _): first(verdict_t.FORWARDED);

            (packet_type_t.CONTRIBUTION, age_t.SAME, false, _, _, _, _, _): refuse(verdict_t.MISMATCH);
            (packet_type_t.CONTRIBUTION, age_t.SAME, _, false, false, _, _, _): join(verdict_t.ADDED);
            (packet_type_t.CONTRIBUTION, age_t.SAME, _, false, true, false, _, _): join(verdict_t.COMPLETE);
            (packet_type_t.CONTRIBUTION, age_t.SAME, _, false, true, true, _, _): join(verdict_t.FORWARDED);
            (packet_type_t.CONTRIBUTION, age_t.SAME, _, true, false, _, _, _): refuse(verdict_t.DUPLICATE);
            (packet_type_t.CONTRIBUTION, age_t.SAME, _, true, true, true, 0, _): read(verdict_t.FORWARDED_AGAIN);
            (packet_type_t.CONTRIBUTION, age_t.SAME, _, true, true, _, _, _): read(verdict_t.RESEND);

            // Results of the parent.
            (packet_type_t.RESULT, age_t.SAME, true, _, true, _, 0, false): answer(verdict_t.ANSWERED);
            (packet_type_t.RESULT, age_t.SAME, true, _, true, _, 1, _): refuse(verdict_t.DUPLICATE);
        }
        const default_action = refuse(verdict_t.STALE);
    }

    apply {
        owner.read(held_owner, index);
        sequence.read(held_sequence, index);
        bitmap_low.read(held_low, index);
        bitmap_high.read(held_high, index);
        lane_format.read(held_format, index);
        answered.read(held_answered, index);
        bit<32> of_job = (bit<32>)meta.job.slot_first;
        completed.read(held_completed, of_job);
        completed_owner.read(held_completed_owner, of_job);
        if (held_completed_owner != meta.job.owner) { held_completed = 0; }  // sequences begin there

        no_result.read(meta.no_result, index);
        bitmap = held_high ++ held_low;
        // Serial numbers (RFC 1982): the held one is before the packet's if their difference is negative.
        bit<32> lead = held_sequence - hdr.passing.sequence;
        bit<32> ahead = hdr.passing.sequence - held_completed;
        bool contributed = hdr.passing.type == packet_type_t.CONTRIBUTION;
        if (contributed && ahead[31:31] == 0 && ahead > meta.job.reach) {
            age = age_t.TOO_FAR;
        } else if (held_owner != meta.job.owner || lead[31:31] == 1) {
            age = age_t.NEWER;
            bitmap = 0;
            meta.no_result = 0;
        } else if (lead == 0) {
            age = age_t.SAME;
        } else {
            age = age_t.PAST;
        }
        same_format = held_format == (bit<8>)hdr.passing.lane_format;
        again = bitmap & meta.worker_bit != 0;
        bitmap = bitmap | meta.worker_bit;
        full = bitmap == meta.job.workers;
        bool left_out = hdr.passing.flags & NO_RESULT != 0;
        lacks_lanes = left_out && meta.no_result != meta.job.workers;
        if (left_out && !again) { meta.no_result = meta.no_result | meta.worker_bit; }
        verdict.apply();

        bool complete = meta.verdict == verdict_t.COMPLETE || meta.verdict == verdict_t.FORWARDED;
        if (complete && ahead[31:31] == 0) {
            completed.write(of_job, hdr.passing.sequence);
            completed_owner.write(of_job, meta.job.owner);
        }
    }
}

#endif  // P4_V1MODEL_SLOT_CHECK_P4_
