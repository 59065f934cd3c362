// SPDX-License-Identifier: Apache-2.0
// Lanes that are left out (docs/internals/lanes.md): of a contribution, as it adds nothing, and of a result, for
// a worker that needs none. next_step.p4 says with which of them a packet leaves.
#ifndef P4_TNA_LEFT_OUT_LANES_P4_
#define P4_TNA_LEFT_OUT_LANES_P4_

#include "metadata.p4"

// In the stage of the sequence. Afterwards the packet's flag is HELD or not, and it has lanes, be they zeros.
control OwnFlags(inout headers_t hdr, inout metadata_t meta) {
    action has_lanes() { hdr.passing.flags[7:3] = 1; }  // HELD
    action has_lanes_and_needs_result() {
        has_lanes();
        meta.wish = meta.worker;
    }
    // They add nothing: from here on they are zeros.
    action lacks_lanes() {
        hdr.passing.flags[7:3] = 0;
        hdr.lanes.setValid();
#define CLEAR(p)            \
    hdr.lanes.low_##p = 0;  \
    hdr.lanes.high_##p = 0;
        EACH_PAIR(CLEAR)
#undef CLEAR
    }
    action lacks_lanes_and_needs_result() {
        lacks_lanes();
        meta.wish = meta.worker;
    }
    table own_flags {
        key = {
            meta.pass: exact;
            hdr.passing.flags: ternary;
        }
        actions = {
            has_lanes;
            has_lanes_and_needs_result;
            lacks_lanes;
            lacks_lanes_and_needs_result;
            @defaultonly NoAction;
        }
        const entries = {
            (pass_t.FIRST, 0 &&& (BARE | NO_RESULT)): has_lanes_and_needs_result();
            (pass_t.FIRST, BARE &&& (BARE | NO_RESULT)): lacks_lanes_and_needs_result();
            (pass_t.FIRST, BARE &&& BARE): lacks_lanes();
            (pass_t.FIRST, _): has_lanes();
            (pass_t.ANSWER, BARE &&& BARE): lacks_lanes();
            (pass_t.ANSWER, _): has_lanes();
            (pass_t.LOW, _): has_lanes();
            (pass_t.HIGH, _): has_lanes();
        }
        const default_action = NoAction;
        size = 16;
    }

    apply { own_flags.apply(); }
}

// In the stage of the verdict: who needs the lanes of the result?
control Needs(inout metadata_t meta) {
    Register<missing_t, index_t>(VERSIONS) needing;

    RegisterAction<missing_t, index_t, missing_t>(needing) begin_needing = {
        void apply(inout missing_t all) { all = meta.wish; }
    };
    RegisterAction<missing_t, index_t, missing_t>(needing) join_needing = {
        void apply(inout missing_t all, out missing_t now) {
            all = all | meta.wish;
            now = all;
        }
    };
    RegisterAction<missing_t, index_t, missing_t>(needing) read_needing = {
        void apply(inout missing_t all, out missing_t now) { now = all; }
    };
    RegisterAction<missing_t, index_t, missing_t>(needing) read_own_need = {
        void apply(inout missing_t all, out missing_t own) { own = all & meta.worker; }
    };
    action begin_needs() {
        begin_needing.execute(meta.index);
        meta.needing = meta.wish;
    }
    action join_needs() { meta.needing = join_needing.execute(meta.index); }
    action read_needs() { meta.needing = read_needing.execute(meta.index); }
    action read_own() { meta.needing = read_own_need.execute(meta.index); }
    table needs {
        key = {
            meta.slot_step: exact;
            meta.own: ternary;
            meta.left: ternary;
        }
        actions = { begin_needs; join_needs; read_needs; read_own; @defaultonly NoAction; }
        const entries = {
            (slot_step_t.BEGIN, _, _): begin_needs();
            (slot_step_t.JOIN, 0, 0): read_own();  // a resend
            (slot_step_t.JOIN, 0, _): read_needs();
            (slot_step_t.JOIN, _, _): join_needs();
            (slot_step_t.ANSWER, _, _): read_needs();
            (slot_step_t.READ, _, _): read_needs();
        }
        const default_action = NoAction;
        size = 8;
    }

    apply { needs.apply(); }
}

#endif  // P4_TNA_LEFT_OUT_LANES_P4_
