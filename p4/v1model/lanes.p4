// SPDX-License-Identifier: Apache-2.0
// The sum, or the signed maximum, of all workers' lanes.
//
// A group of lanes is one wide integer, joined by a few operations on all of it: bmv2's time goes into the number of
// operations rather than bits. It takes twice the packets that it takes with a register for each lane (../README.md).
#ifndef P4_V1MODEL_LANES_P4_
#define P4_V1MODEL_LANES_P4_

#include "metadata.p4"
#include "lane_header.p4"

const group_t EACH_ONE = (group_t)(((1 << (32 * GROUP_LANES)) - 1) / ((1 << 32) - 1));  // 1 in each lane
const group_t SIGNS = EACH_ONE << 31;                                                   // each lane's top bit
const group_t BELOW = ~SIGNS;

// Without their top bits two lanes add up to less than 2^32: nothing is carried into the next lane. The top bit of each
// sum is the carry into it, xor both top bits.
action add(out group_t sum, in group_t a, in group_t b) {
    sum = ((a & BELOW) + (b & BELOW)) ^ ((a ^ b) & SIGNS);
}

// With a's top bits set and b's cleared no lane borrows from the next, and each difference keeps its top bit if a is no
// less than b below it. That decides between lanes of the same sign; else the negative one is less.
action maximum(out group_t max, in group_t a, in group_t b) {
    group_t not_less = ((a ^ b) & b | ~(a ^ b) & ((a | SIGNS) - (b & BELOW))) & SIGNS;
    group_t of_a = (not_less << 1) - (not_less >> 31);  // 2^32 - 1 in those lanes; the highest wraps
    max = b ^ ((a ^ b) & of_a);
}

control LaneGroup(inout group_t lanes, in state_step_t lanes_step, in lane_format_t lane_format, in bit<32> index) {
    register<group_t>(VERSIONS) held;
    group_t other;

    action write() { held.write(index, lanes); }
    action read() { held.read(lanes, index); }
    action join_sum() {
        held.read(other, index);
        add(lanes, other, lanes);
        held.write(index, lanes);
    }
    action join_maximum() {
        held.read(other, index);
        maximum(lanes, other, lanes);
        held.write(index, lanes);
    }
    table step {
        key = {
            lanes_step: exact;
            lane_format: ternary;
        }
        actions = { write; read; join_sum; join_maximum; NoAction; }
        const entries = {
            (state_step_t.WRITE, _): write();
            (state_step_t.READ, _): read();
            (state_step_t.JOIN, lane_format_t.SUM_INT32): join_sum();
            (state_step_t.JOIN, lane_format_t.MAX_INT32): join_maximum();
        }
        const default_action = NoAction;
    }

    apply { step.apply(); }
}

// Afterwards the packet has lanes if the slot version holds any.
control Lanes(inout headers_t hdr, in metadata_t meta, in bit<32> index) {
    register<bit<1>>(VERSIONS) bare;  // nobody has added lanes: none are held
    bit<1> held_bare;
    bool has_lanes;
    state_step_t lanes_step = state_step_t.NONE;

    action write() {
        bare.write(index, 0);
        lanes_step = state_step_t.WRITE;
    }
    action write_none() { bare.write(index, 1); }
    action join() { lanes_step = state_step_t.JOIN; }
    action read() {
        hdr.lanes.setValid();
        lanes_step = state_step_t.READ;
    }
    action read_none() { hdr.lanes.setInvalid(); }
    table step {
        key = {
            meta.step: exact;
            has_lanes: ternary;
            held_bare: ternary;
        }
        actions = { write; write_none; join; read; read_none; NoAction; }
        const entries = {
            (state_step_t.WRITE, true, _): write();
            (state_step_t.WRITE, false, _): write_none();
            (state_step_t.JOIN, true, 0): join();
            (state_step_t.JOIN, true, 1): write();
            (state_step_t.JOIN, false, 0): read();
            (state_step_t.READ, _, 0): read();
            (state_step_t.READ, _, 1): read_none();
        }
        const default_action = NoAction;
    }

#define INSTANCE(g) LaneGroup() group##g;
    EACH_GROUP(INSTANCE)
#undef INSTANCE

    apply {
        bare.read(held_bare, index);
        has_lanes = hdr.lanes.isValid();
        step.apply();
#define APPLY(g) group##g.apply(hdr.lanes.group##g, lanes_step, hdr.passing.lane_format, index);
        EACH_GROUP(APPLY)
#undef APPLY
    }
}

#endif  // P4_V1MODEL_LANES_P4_
