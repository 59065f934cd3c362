// SPDX-License-Identifier: Apache-2.0
// NaN, +Inf, -Inf: a result has the flags of all workers.
#ifndef P4_V1MODEL_STICKY_FLAGS_P4_
#define P4_V1MODEL_STICKY_FLAGS_P4_

#include "../headers.p4"
#include "metadata.p4"

control StickyFlags(inout headers_t hdr, in metadata_t meta, in bit<32> index) {
    register<bit<8>>(VERSIONS) flags;
    bit<8> held;

    action write() { flags.write(index, hdr.passing.flags); }
    action read() { flags.read(hdr.passing.flags, index); }
    action join() {
        flags.read(held, index);
        hdr.passing.flags = hdr.passing.flags | held;
        write();
    }
    table step {
        key = { meta.step: exact; }
        actions = { write; read; join; NoAction; }
        const entries = {
            (state_step_t.WRITE): write();
            (state_step_t.READ): read();
            (state_step_t.JOIN): join();
        }
        const default_action = NoAction;
    }

    apply {
        hdr.passing.flags = hdr.passing.flags & STICKY;
        step.apply();
    }
}

#endif  // P4_V1MODEL_STICKY_FLAGS_P4_
