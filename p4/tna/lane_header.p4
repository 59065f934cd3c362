// SPDX-License-Identifier: Apache-2.0
// Lanes as Tofino sums them: in pairs, each in one cell of a register, whose ALU works on both at once.
#ifndef P4_TNA_LANE_HEADER_P4_
#define P4_TNA_LANE_HEADER_P4_

#include "../types.p4"

// X(p) for each pair of lanes, whose number p has two octal digits.
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#if LANES == 16
#define EACH_PAIR(X) EIGHT(X, 0)
#elif LANES == 32
#define EACH_PAIR(X) EIGHT(X, 0) EIGHT(X, 1)
#elif LANES == 64
#define EACH_PAIR(X) EIGHT(X, 0) EIGHT(X, 1) EIGHT(X, 2) EIGHT(X, 3)
#else
#error "LANES is 16, 32 or 64: the header vector of a Tofino holds no more"
#endif

header lanes_h {
#define FIELDS(p)    \
    int<32> low_##p; \
    int<32> high_##p;
    EACH_PAIR(FIELDS)
#undef FIELDS
}

#endif  // P4_TNA_LANE_HEADER_P4_
