// The sum of lanes times factors, as an exact integer: lanes are read as int32 in network order. AVX2 has an
// instruction for such products that compilers don't find.
#ifndef XLA_FFI_HOST_PACKETS_LANE_PRODUCT_H_
#define XLA_FFI_HOST_PACKETS_LANE_PRODUCT_H_

#include <array>
#include <cstdint>
#include <vector>

namespace passing {

// Parts of the sum, whose order doesn't matter.
using PartialProducts = std::array<int64_t, 8>;

// Factors lie between -2^26 and 2^26 - 1, so a product is at most 2^57 in magnitude, and a part has 45 of them.
inline constexpr int kFactorBits = 27;
inline constexpr uint32_t kMaxProductLanes = 360;
static_assert((kMaxProductLanes / std::tuple_size_v<PartialProducts> + 1) * (uint64_t{1} << (kFactorBits - 1 + 31)) <
              uint64_t{1} << 63);

// `count`: at most kMaxProductLanes. There are as many factors, and room for kFactorsBehind more.
inline constexpr uint32_t kFactorsBehind = 16;
using LaneProduct = PartialProducts (*)(const uint8_t* lanes, uint32_t count, const int32_t* factors);

// All that this CPU can do, which add up to the same. The fastest is the first one, plain C++ the last.
std::vector<LaneProduct> AllLaneProducts();

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_LANE_PRODUCT_H_
