// SPDX-License-Identifier: Apache-2.0
// Constants and types of the protocol (docs/internals/protocol.md), for every architecture. Numbers that travel are
// those of xla_ffi/wire/header.h.
#ifndef P4_TYPES_P4_
#define P4_TYPES_P4_

// --- Choices of a build, with -D

#ifndef LANES
#define LANES 64  // in every packet: a power of two
#endif
#ifndef SLOTS
#define SLOTS 8192  // of all jobs together, at most 32,768; each has two versions
#endif
#ifndef PASSING_PORT
#define PASSING_PORT 7171  // UDP
#endif

#if LANES < 8 || (LANES & (LANES - 1)) != 0
#error "LANES is a power of two, at least 8: chunks of fewer lanes are mostly headers"
#endif
#if SLOTS < 1 || SLOTS > 32768
#error "SLOTS is at most 32768: a slot version is found by 16 bits, fifteen of the slot and one of the version"
#endif

// --- Capacities

#define VERSIONS (2 * SLOTS)  // register cells: one for each version of each slot
#define JOBS_MAX 1024
const bit<16> ALL_PORTS = 1;  // the multicast group of ordinary traffic

// --- Protocol

const bit<8> MAGIC = 0x9A;
const bit<8> PROTOCOL = 1;
const bit<16> EVERY_WORKER = 0xFFFF;  // the worker field of a result
const bit<8> STICKY = 0x07;           // flags: NaN, +Inf, -Inf
const bit<8> BARE = 0x08;             // of sums only: the lanes that are counted don't follow
const bit<8> NO_RESULT = 0x10;        // and the worker needs none of the result
const bit<8> NOT_FLAGS = 0xE0;        // no flag

enum bit<8> packet_type_t {
    CONTRIBUTION = 1,
    RESULT = 2,
    PROBE = 3
}

enum bit<8> lane_format_t {
    SUM_INT32 = 1,  // lanes are added, wrapping
    MAX_INT32 = 2   // the signed maximum is taken: exponents travel so, and maxima of elements
}

// A packet's verdict, which is also its index in the counter `verdicts`.
enum bit<8> verdict_t {
    ADDED = 0,             // counted, the slot still waits for other workers
    COMPLETE = 1,          // the last worker: the result goes to all
    RESEND = 2,            // the result is there already: to this worker alone, who asks again
    DUPLICATE = 3,         // counted already, or the parent's result once more: nothing to send
    STALE = 4,             // an older sequence than the slot version holds; of the parent's result, any other
    MALFORMED = 5,         // no packet of this protocol, or not with LANES lanes
    FOREIGN_JOB = 6,       // no such job here
    FOREIGN_EPOCH = 7,     // another incarnation of the job
    FOREIGN_WORKER = 8,    // no such worker
    FOREIGN_SOURCE = 9,    // not the address that this worker joined with
    FOREIGN_SLOT = 10,     // outside the job's partition
    NOT_CONTRIBUTION = 11, // a type that a switch doesn't take
    MISMATCH = 12,         // another lane format than the other workers'
    TOO_FAR = 13,          // further ahead than a worker can be
    FORWARDED = 14,        // the last worker, and the job has a parent: the sum goes up
    FORWARDED_AGAIN = 15,  // a worker asks again, the parent hasn't answered: the sum goes up again
    ANSWERED = 16          // the parent's result: it goes to all workers
}
#define VERDICTS 17

// --- Widths

typedef bit<48> mac_t;
typedef bit<32> ip_t;

#endif  // P4_TYPES_P4_
