// SPDX-License-Identifier: Apache-2.0
// The sequence that the slot version holds, and who is missing in it, decide what becomes of this packet.
//
// Three tables in three stages, each decided by the values that the one before has read: a register is touched once a
// packet.
#ifndef P4_TNA_SLOT_CHECK_P4_
#define P4_TNA_SLOT_CHECK_P4_

#include "metadata.p4"

// The lane format as `sequence` holds it, and returns it to whom it concerns: 0 to a packet of an older sequence, NEW
// and the packet's own to the first one of a newer sequence, to all others the one held.
#define NEW 4
#define NOT_NEW 3

struct chunk_t {
    int<32> sequence;
    int<32> lane_format;  // an ALU's two words are of one type
}

control SlotCheck(inout headers_t hdr, inout metadata_t meta) {
    // --- The sequence

    Register<chunk_t, index_t>(VERSIONS) sequence;

    RegisterAction<chunk_t, index_t, bit<32>>(sequence) begin_it = {
        void apply(inout chunk_t held) {
            held.sequence = (int<32>)hdr.passing.sequence;
            held.lane_format = (int<32>)(24w0 ++ (bit<8>)hdr.passing.lane_format) + NEW;
        }
    };
    // Serial numbers (RFC 1982): the held one is before the packet's if their difference is negative.
    RegisterAction<chunk_t, index_t, bit<32>>(sequence) compare_it = {
        void apply(inout chunk_t held, out bit<32> format) {
            format = 0;
            if (held.sequence - (int<32>)hdr.passing.sequence < 0) {
                held.sequence = (int<32>)hdr.passing.sequence;
                held.lane_format = (int<32>)(24w0 ++ (bit<8>)hdr.passing.lane_format) + NEW;
            } else if (held.sequence == (int<32>)hdr.passing.sequence) {
                held.lane_format = held.lane_format & NOT_NEW;
            }
            if (held.sequence - (int<32>)hdr.passing.sequence < 0 ||
                held.sequence == (int<32>)hdr.passing.sequence) {
                format = (bit<32>)held.lane_format;
            }
        }
    };
    RegisterAction<chunk_t, index_t, bit<32>>(sequence) read_it = {
        void apply(inout chunk_t held, out bit<32> format) {
            format = 0;
            if (held.sequence == (int<32>)hdr.passing.sequence) { format = (bit<32>)held.lane_format; }
        }
    };

    action begin() {
        begin_it.execute(meta.index);
        meta.held_format = NEW;
    }
    action compare() { meta.held_format = compare_it.execute(meta.index); }
    action look() { meta.held_format = read_it.execute(meta.index); }
    action nothing_held() { meta.held_format = 0; }
    table age {
        key = {
            meta.pass: exact;
            meta.fresh: exact;
        }
        actions = { begin; compare; look; nothing_held; }
        const entries = {
            (pass_t.FIRST, 1): begin();
            (pass_t.FIRST, 0): compare();
            (pass_t.LOW, 0): look();
            (pass_t.HIGH, 0): look();
            (pass_t.ANSWER, 0): look();
            (pass_t.ASK, 0): look();
        }
        const default_action = nothing_held();
        size = 8;
    }

    // --- Who is missing

    // The bitmap is kept twice, for the ALU returns one word: one copy says whether this worker was missing, the other
    // who is still missing.
    Register<missing_t, index_t>(VERSIONS) missing_own;
    Register<missing_t, index_t>(VERSIONS) missing_left;

    RegisterAction<missing_t, index_t, missing_t>(missing_own) begin_own = {
        void apply(inout missing_t missing) { missing = meta.others; }
    };
    RegisterAction<missing_t, index_t, missing_t>(missing_own) join_own = {
        void apply(inout missing_t missing, out missing_t own) {
            own = missing & meta.worker;
            missing = missing & ~meta.worker;
        }
    };
    RegisterAction<missing_t, index_t, missing_t>(missing_own) answer_own = {
        void apply(inout missing_t missing) {
            if (missing == PARENT) { missing = 0; }
        }
    };
    RegisterAction<missing_t, index_t, missing_t>(missing_left) begin_left = {
        void apply(inout missing_t missing) { missing = meta.others; }
    };
    RegisterAction<missing_t, index_t, missing_t>(missing_left) join_left = {
        void apply(inout missing_t missing, out missing_t left) {
            missing = missing & ~meta.worker;
            left = missing;
        }
    };
    RegisterAction<missing_t, index_t, missing_t>(missing_left) answer_left = {
        void apply(inout missing_t missing, out missing_t left) {
            left = missing;
            if (missing == PARENT) { missing = 0; }
        }
    };

    action refuse_step(slot_step_t step) { meta.slot_step = step; }
    action begin_bitmap() {
        meta.slot_step = slot_step_t.BEGIN;
        begin_own.execute(meta.index);
    }
    action join_bitmap() {
        meta.slot_step = slot_step_t.JOIN;
        meta.own = join_own.execute(meta.index);
    }
    action answer_bitmap() {
        meta.slot_step = slot_step_t.ANSWER;
        answer_own.execute(meta.index);
    }
    table bitmap {
        key = {
            meta.pass: exact;
            meta.held_format: ternary;
            hdr.passing.lane_format: ternary;
        }
        actions = { refuse_step; begin_bitmap; join_bitmap; answer_bitmap; }
        const entries = {
            (pass_t.FIRST, 0, _): refuse_step(slot_step_t.STALE);
            (pass_t.FIRST, NEW &&& NEW, _): begin_bitmap();
            (pass_t.FIRST, 1, lane_format_t.SUM_INT32): join_bitmap();
            (pass_t.FIRST, 2, lane_format_t.MAX_INT32): join_bitmap();
            (pass_t.FIRST, _, _): refuse_step(slot_step_t.MISMATCH);
            (pass_t.ANSWER, 1 &&& NOT_NEW, lane_format_t.SUM_INT32): answer_bitmap();
            (pass_t.ANSWER, 2 &&& NOT_NEW, lane_format_t.MAX_INT32): answer_bitmap();
            (pass_t.LOW, 0, _): refuse_step(slot_step_t.STALE);
            (pass_t.LOW, _, _): refuse_step(slot_step_t.READ);
            (pass_t.HIGH, 0, _): refuse_step(slot_step_t.STALE);
            (pass_t.HIGH, _, _): refuse_step(slot_step_t.READ);
            (pass_t.ASK, 1 &&& NOT_NEW, lane_format_t.SUM_INT32): refuse_step(slot_step_t.READ);
        }
        const default_action = refuse_step(slot_step_t.STALE);
        size = 16;
    }

    // The other copy, touched by the same packets in the same stage: an action drives one ALU.
    action begin_bitmap_left() {
        begin_left.execute(meta.index);
        meta.left = meta.others;
    }
    action join_bitmap_left() { meta.left = join_left.execute(meta.index); }
    action answer_bitmap_left() { meta.left = answer_left.execute(meta.index); }
    table bitmap_left {
        key = {
            meta.pass: exact;
            meta.held_format: ternary;
            hdr.passing.lane_format: ternary;
        }
        actions = { begin_bitmap_left; join_bitmap_left; answer_bitmap_left; @defaultonly NoAction; }
        const entries = {
            (pass_t.FIRST, NEW &&& NEW, _): begin_bitmap_left();
            (pass_t.FIRST, 1, lane_format_t.SUM_INT32): join_bitmap_left();
            (pass_t.FIRST, 2, lane_format_t.MAX_INT32): join_bitmap_left();
            (pass_t.ASK, 1 &&& NOT_NEW, lane_format_t.SUM_INT32): join_bitmap_left();  // its worker is none
            (pass_t.ANSWER, 1 &&& NOT_NEW, lane_format_t.SUM_INT32): answer_bitmap_left();
            (pass_t.ANSWER, 2 &&& NOT_NEW, lane_format_t.MAX_INT32): answer_bitmap_left();
        }
        const default_action = NoAction;
        size = 16;
    }

    // --- The verdict, and the sticky flags: NaN, +Inf, -Inf of all workers, HELD among them

    Register<bit<8>, index_t>(VERSIONS) flags;

    RegisterAction<bit<8>, index_t, bit<8>>(flags) write_flags = {
        void apply(inout bit<8> held) { held = hdr.passing.flags; }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(flags) join_flags = {
        void apply(inout bit<8> held, out bit<8> all) {
            held = held | hdr.passing.flags;
            all = held;
        }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(flags) read_flags = {
        void apply(inout bit<8> held, out bit<8> all) { all = held; }
    };

    action refuse(verdict_t verdict) { meta.verdict = verdict; }
    action write(verdict_t verdict) {
        meta.verdict = verdict;
        meta.lanes_step = lanes_step_t.WRITE;
        write_flags.execute(meta.index);
    }
    action join(verdict_t verdict, lanes_step_t step) {
        meta.verdict = verdict;
        meta.lanes_step = step;
        hdr.passing.flags = join_flags.execute(meta.index);
    }
    action read(verdict_t verdict) {
        meta.verdict = verdict;
        meta.lanes_step = lanes_step_t.READ;
        hdr.passing.flags = read_flags.execute(meta.index);
    }
    action read_on(lanes_step_t step) { meta.lanes_step = step; }

#define SUM lane_format_t.SUM_INT32
#define MAX lane_format_t.MAX_INT32
    table verdict {
        key = {
            meta.slot_step: exact;
            meta.own: ternary;
            meta.left: ternary;
            hdr.passing.lane_format: ternary;
            meta.pass: ternary;
        }
        actions = { refuse; write; join; read; read_on; }
        const entries = {
            // step, own, left, format, pass
            (slot_step_t.STALE, _, _, _, _): refuse(verdict_t.STALE);
            (slot_step_t.MISMATCH, _, _, _, _): refuse(verdict_t.MISMATCH);

            (slot_step_t.BEGIN, _, 0, _, _): write(verdict_t.COMPLETE);
            (slot_step_t.BEGIN, _, PARENT, _, _): write(verdict_t.FORWARDED);
            (slot_step_t.BEGIN, _, _, _, _): write(verdict_t.ADDED);

            (slot_step_t.JOIN, 0, 0, _, _): read(verdict_t.RESEND);
            (slot_step_t.JOIN, 0, PARENT, _, _): read(verdict_t.FORWARDED_AGAIN);
            (slot_step_t.JOIN, 0, _, _, _): refuse(verdict_t.DUPLICATE);
            (slot_step_t.JOIN, _, 0, SUM, _): join(verdict_t.COMPLETE, lanes_step_t.ADD);
            (slot_step_t.JOIN, _, 0, MAX, _): join(verdict_t.COMPLETE, lanes_step_t.MAXIMUM);
            (slot_step_t.JOIN, _, PARENT, SUM, _): join(verdict_t.FORWARDED, lanes_step_t.ADD);
            (slot_step_t.JOIN, _, PARENT, MAX, _): join(verdict_t.FORWARDED, lanes_step_t.MAXIMUM);
            (slot_step_t.JOIN, _, _, SUM, _): join(verdict_t.ADDED, lanes_step_t.ADD);
            (slot_step_t.JOIN, _, _, MAX, _): join(verdict_t.ADDED, lanes_step_t.MAXIMUM);

            (slot_step_t.ANSWER, _, PARENT, _, _): write(verdict_t.ANSWERED);
            (slot_step_t.ANSWER, _, 0, _, _): refuse(verdict_t.DUPLICATE);
            (slot_step_t.ANSWER, _, _, _, _): refuse(verdict_t.STALE);

            (slot_step_t.READ, _, _, _, pass_t.LOW): read_on(lanes_step_t.ADD);
            (slot_step_t.READ, _, _, _, pass_t.HIGH): read_on(lanes_step_t.HIGH);
            // Unless nobody needs the lanes.
            (slot_step_t.READ, _, 0, _, pass_t.ASK): refuse(verdict_t.DUPLICATE);
            (slot_step_t.READ, _, _, _, pass_t.ASK): refuse(verdict_t.STALE);
        }
        const default_action = refuse(verdict_t.STALE);
        size = 32;
    }

    apply {
        age.apply();
        bitmap.apply();
        bitmap_left.apply();
        verdict.apply();
    }
}

#endif  // P4_TNA_SLOT_CHECK_P4_
