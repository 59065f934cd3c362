// SPDX-License-Identifier: Apache-2.0
// Metadata: all that is known of a packet besides its bytes.
#ifndef P4_TNA_METADATA_P4_
#define P4_TNA_METADATA_P4_

#include "../headers.p4"

// A stateful ALU of Tofino 1 returns one word. It adds to both lanes of a pair, but the packet takes the high ones with
// it in another pass; Tofino 2's returns both.
#define ONE_WORD (__TARGET_TOFINO__ == 1)

// The port of each pipe that leads back into it, among the 128 that a pipe has.
#if ONE_WORD
#define RECIRCULATION_PORT 68
#else
#define RECIRCULATION_PORT 6
#endif

typedef bit<16> index_t;  // of a slot version: the slot, then the version

// One bit a worker, so there are at most 31 of them; the last bit stands for the parent's answer.
typedef bit<32> missing_t;
const missing_t PARENT = 1 << 31;

// Through the pipeline once more, by its recirculation port: what for?
enum bit<8> pass_t {
    FIRST = 0,   // it has just arrived
    LOW = 1,     // to take the low lanes of a slot that is complete: they are added to zeros
    HIGH = 2,    // to take the high lanes
    TRANSLATED = 3,  // still in the first one: the header of the parent's result speaks of our job now
    ANSWER = 4,  // to answer our workers by it
    ASK = 5      // before that, if it says that lanes are left out: does any worker need them?
}

// Before the Ethernet header, on the recirculation port alone.
header recirculation_h {
    pass_t pass;
    verdict_t verdict;  // of the first pass
}

// Before the Ethernet header of multicast copies, on their way to egress.
header copy_h {
    bit<7> result;  // 1: for the worker that the copy's replication number says
    bit<9> ingress_port;
}

// Behind it in copies of a result: the workers that need its lanes.
header needs_h {
    missing_t workers;
}

// The step that the sequence asks of the bitmap, and the bitmap of the verdict.
enum bit<8> slot_step_t {
    STALE = 0,
    MISMATCH = 1,
    BEGIN = 2,   // the first contribution of a newer sequence
    JOIN = 3,    // one more of the same
    ANSWER = 4,  // of the parent
    READ = 5     // a further pass, and the slot holds this sequence
}

enum bit<8> lanes_step_t {
    LEAVE = 0,
    WRITE = 1,    // hold the packet's
    ADD = 2,      // add the packet's to those held, and take the sum
    MAXIMUM = 3,  // the same with the greater one of each two
    READ = 4,     // take those held; where the ALU returns one word: zeros, for the next passes
    HIGH = 5      // take the high ones
}

// A flag inside of the switch, where the header's flag BARE is while it travels: there are lanes, of the packet or, once
// the slot version's flags are read, of what it holds. So it sticks, as NaN does.
const bit<8> HELD = 0x08;

struct metadata_t {
    recirculation_h recirculation;
    copy_h copy;
    needs_h needs;
    pass_t pass;
    verdict_t verdict;
    bit<1> to_us;
    bit<1> well_formed; // a packet of this protocol, as far as the parser can tell
    bit<1> forward;    // to the one port that the destination's MAC address leads to
    bit<1> accepted;   // no check of the job refused it
    bit<1> fresh;      // the slot version holds numbers of another job or epoch
    bit<16> group;     // the multicast group that replicates to the job's workers
    index_t index;
    missing_t worker;  // its bit
    missing_t others;  // all other bits
    bit<32> held_format;
    missing_t own;     // its bit if it wasn't added before
    missing_t left;    // who is missing after this packet
    missing_t wish;    // its bit if it needs the result's lanes
    missing_t needing; // the workers that need them; of a resend, none but the one that asks
    slot_step_t slot_step;
    lanes_step_t lanes_step;
}

#endif  // P4_TNA_METADATA_P4_
