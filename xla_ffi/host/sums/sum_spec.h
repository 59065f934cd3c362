// The description of a sum, from the program to the packets: Python writes it into a program as one text.
#ifndef XLA_FFI_HOST_SUMS_SUM_SPEC_H_
#define XLA_FFI_HOST_SUMS_SUM_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/numbers/dtype.h"

namespace passing {

enum class Op : uint8_t { kSum, kMax };

// A host may give and need parts of a sum alone. In each leaf, rows of equally many elements belong to devices.
enum class Moves : uint8_t {
  kAll,        // gives all, and needs all
  kGather,     // gives its devices' rows, and zeros for the others: these are what it needs
  kScatter,    // gives all, and needs its devices' rows
  kBroadcast,  // as kGather, of one row: that of device `root`
};

// The world size of a program that was compiled in an elastic session: as many as the session has when it runs.
inline constexpr uint32_t kAnyWorldSize = 0;

// The fields, with their values in a sum that says no more. jax_passing/collective/naming/sum_spec.py says what each of
// them is; the text has them in the same order.
#define PASSING_SUM_SPEC(FIELD)                                                          \
  FIELD(int64_t, ordinal, 0)                                                             \
  FIELD(std::string, program, {})                                                        \
  FIELD(int64_t, site, 0)                                                                \
  FIELD(std::string, identity, {})                                                       \
  FIELD(std::string, site_name, {})                                                      \
  FIELD(DType, dtype, DType::kFloat32)                                                   \
  FIELD(std::vector<uint64_t>, leaf_elements, {}) /* complex counted twice; none is 0 */ \
  FIELD(uint32_t, member_count, 1)                                                       \
  FIELD(uint32_t, local_member_count, 1)                                                 \
  FIELD(uint32_t, replica_count, 1)                                                      \
  FIELD(Op, op, Op::kSum) /* kMax: of int32 alone */                                     \
  FIELD(WireDtype, wire_dtype, WireDtype::kFull)                                         \
  FIELD(bool, residuals, false)                                                          \
  FIELD(uint32_t, world_size, 1)                                                         \
  FIELD(bool, flat, false)                                                               \
  FIELD(bool, conditional, false)                                                        \
  FIELD(Moves, moves, Moves::kAll)                                                       \
  FIELD(uint32_t, rows_inside, 0)                                                        \
  FIELD(bool, rows_alone, false)                                                         \
  FIELD(bool, early, false)                                                              \
  FIELD(uint32_t, root, 0)                                                               \
  FIELD(std::string, devices, {})

struct SumSpec {
#define PASSING_FIELD(type, name, value) type name = value;
  PASSING_SUM_SPEC(PASSING_FIELD)
#undef PASSING_FIELD

  bool is_visit() const { return identity.empty(); }
  // Count of one device's elements.
  uint64_t elements() const {
    uint64_t elements = 0;
    for (const uint64_t leaf : leaf_elements) elements += leaf;
    return elements;
  }
  uint64_t bytes() const { return elements() * SizeOf(Narrowed(dtype)); }
};

// Throws std::invalid_argument if it isn't such a text.
SumSpec ParseSumSpec(std::string_view text);

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_SPEC_H_
