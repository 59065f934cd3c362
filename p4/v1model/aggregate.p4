// SPDX-License-Identifier: Apache-2.0
// A packet to our UDP port: docs/internals/protocol.md, check by check. Each is counted under one verdict.
#ifndef P4_V1MODEL_AGGREGATE_P4_
#define P4_V1MODEL_AGGREGATE_P4_

#include "parents.p4"
#include "job_check.p4"
#include "slot_check.p4"
#include "sticky_flags.p4"
#include "lanes.p4"
#include "next_step.p4"

control Aggregate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Parents() parents;
    JobCheck() job_check;
    SlotCheck() slot_check;
    StickyFlags() sticky_flags;
    Lanes() lanes;
    NextStep() next_step;
    @id(1) counter(VERDICTS, CounterType.packets) verdicts;

    apply {
        if (meta.well_formed == 1 && standard.checksum_error == 0) {
            parents.apply(hdr, meta);
            job_check.apply(hdr, meta);
            if (meta.passed) {
                bit<32> index = (bit<32>)(hdr.passing.slot ++ hdr.passing.version[0:0]);
                slot_check.apply(hdr, meta, index);
                sticky_flags.apply(hdr, meta, index);
                lanes.apply(hdr, meta, index);
            }
        } else {
            meta.verdict = verdict_t.MALFORMED;
        }
        next_step.apply(hdr, meta, standard);
        verdicts.count((bit<32>)(bit<8>)meta.verdict);
    }
}

#endif  // P4_V1MODEL_AGGREGATE_P4_
