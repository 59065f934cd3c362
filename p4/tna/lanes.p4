// SPDX-License-Identifier: Apache-2.0
// The sum, or the signed maximum, of all workers' lanes: one register a pair, each touched once a packet.
//
// An ALU has room for four instructions. Where it returns one word they are write, add, maximum and "take the high
// lanes": the low ones are taken by adding zeros to them.
#ifndef P4_TNA_LANES_P4_
#define P4_TNA_LANES_P4_

#include "metadata.p4"

struct pair_t {
    int<32> low;
    int<32> high;
}

control LanePair(inout int<32> low, inout int<32> high, in metadata_t meta) {
    Register<pair_t, index_t>(VERSIONS) pair;

    RegisterAction<pair_t, index_t, int<32>>(pair) write_it = {
        void apply(inout pair_t held) {
            held.low = low;
            held.high = high;
        }
    };
    action write() { write_it.execute(meta.index); }

#if ONE_WORD
    RegisterAction<pair_t, index_t, int<32>>(pair) add_it = {
        void apply(inout pair_t held, out int<32> new_low) {
            held.low = held.low + low;
            held.high = held.high + high;
            new_low = held.low;
        }
    };
    RegisterAction<pair_t, index_t, int<32>>(pair) maximum_it = {
        void apply(inout pair_t held, out int<32> new_low) {
            held.low = max(held.low, low);
            held.high = max(held.high, high);
            new_low = held.low;
        }
    };
    RegisterAction<pair_t, index_t, int<32>>(pair) read_high_it = {
        void apply(inout pair_t held, out int<32> held_high) { held_high = held.high; }
    };
    action add() { low = add_it.execute(meta.index); }
    action maximum() { low = maximum_it.execute(meta.index); }
    action read() {
        low = 0;
        high = 0;
    }
    action read_high() { high = read_high_it.execute(meta.index); }
#else
    RegisterAction2<pair_t, index_t, int<32>, int<32>>(pair) add_it = {
        void apply(inout pair_t held, out int<32> new_low, out int<32> new_high) {
            held.low = held.low + low;
            held.high = held.high + high;
            new_low = held.low;
            new_high = held.high;
        }
    };
    RegisterAction2<pair_t, index_t, int<32>, int<32>>(pair) maximum_it = {
        void apply(inout pair_t held, out int<32> new_low, out int<32> new_high) {
            held.low = max(held.low, low);
            held.high = max(held.high, high);
            new_low = held.low;
            new_high = held.high;
        }
    };
    RegisterAction2<pair_t, index_t, int<32>, int<32>>(pair) read_it = {
        void apply(inout pair_t held, out int<32> held_low, out int<32> held_high) {
            held_low = held.low;
            held_high = held.high;
        }
    };
    action add() { low = add_it.execute(meta.index, high); }
    action maximum() { low = maximum_it.execute(meta.index, high); }
    action read() { low = read_it.execute(meta.index, high); }
#endif

    table step {
        key = { meta.lanes_step: exact; }
        actions = {
            write;
            add;
            maximum;
            read;
#if ONE_WORD
            read_high;
#endif
            @defaultonly NoAction;
        }
        const entries = {
            (lanes_step_t.WRITE): write();
            (lanes_step_t.ADD): add();
            (lanes_step_t.MAXIMUM): maximum();
            (lanes_step_t.READ): read();
#if ONE_WORD
            (lanes_step_t.HIGH): read_high();
#endif
        }
        const default_action = NoAction;
        size = 8;
    }

    apply { step.apply(); }
}

control Lanes(inout headers_t hdr, in metadata_t meta) {
#define INSTANCE(p) LanePair() pair_##p;
    EACH_PAIR(INSTANCE)
#undef INSTANCE

    apply {
#define APPLY(p) pair_##p.apply(hdr.lanes.low_##p, hdr.lanes.high_##p, meta);
        EACH_PAIR(APPLY)
#undef APPLY
    }
}

#endif  // P4_TNA_LANES_P4_
