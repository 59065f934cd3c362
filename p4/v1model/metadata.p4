// SPDX-License-Identifier: Apache-2.0
// Metadata: all that is known of a packet besides its bytes. It starts as 0.
#ifndef P4_V1MODEL_METADATA_P4_
#define P4_V1MODEL_METADATA_P4_

#include "../types.p4"

typedef bit<64> bitmap_t;  // bit w: worker w of a job

// The job's entry.
struct job_t {
    bit<16> number;     // here; a result of the parent bears the parent's number
    bit<16> epoch;
    bit<32> owner;      // of the slots: tells this use of them from all earlier ones; not 0
    bit<16> slot_first;
    bit<16> slot_count;
    bitmap_t workers;   // all of them
    bit<16> group;      // the multicast group that replicates to them
    bit<32> reach;      // how far ahead of the furthest complete sequence a contribution may be; below 2^31
}

// The switch above this one, if the job has one, and who we are there.
struct parent_t {
    bit<16> job;
    bit<16> epoch;
    bit<16> worker;
    bit<16> slot_first;
    mac_t mac;
    ip_t ip;
    bit<16> udp_port;
    bit<9> port;
}

// The step that the state of the slot version asks of its lanes and flags.
enum bit<2> state_step_t {
    NONE = 0,   // leave them
    WRITE = 1,  // hold the packet's
    JOIN = 2,   // join the packet's to those held
    READ = 3    // put those held into the packet
}

struct metadata_t {
    bit<16> zero;       // what checksums over their own field come to
    bit<1> well_formed; // a packet of this protocol, as far as can be checked without knowing the job
    bool to_us;         // addressed to the switch itself
    mac_t own_mac;
    bool flooded;       // to all ports but its own
    bool to_workers;    // to all workers of the job, each copy addressed to its worker
    job_t job;
    parent_t parent;
    bool has_parent;
    bool from_parent;   // a result that the parent sent
    bitmap_t worker_bit;
    bitmap_t no_result; // the workers that need no lanes of the slot version's result
    verdict_t verdict;
    bool passed;        // no check has refused it
    state_step_t step;
}

#endif  // P4_V1MODEL_METADATA_P4_
