// The names that all ranks have for a segment of a sum.
#ifndef XLA_FFI_HOST_SUMS_SEGMENT_ID_H_
#define XLA_FFI_HOST_SUMS_SEGMENT_ID_H_

#include <cstddef>
#include <cstdint>

namespace passing {

// A segment of one pass of a sum, named alike on every rank.
struct SegmentId {
  uint64_t site = 0;
  uint32_t execution = 0;
  uint32_t step = 0;
  uint32_t segment = 0;
  uint32_t pass = 0;  // 1: the class counters that follow a sum with NaN or infinities

  friend bool operator==(const SegmentId&, const SegmentId&) = default;
};

inline uint64_t MixedBits(uint64_t bits) {
  bits *= 0x9E3779B97F4A7C15;
  return bits ^ bits >> 29;
}
struct SegmentIdHash {
  size_t operator()(const SegmentId& id) const {
    return MixedBits(MixedBits(id.site ^ (uint64_t{id.execution} << 32 | id.step)) ^
                     (uint64_t{id.segment} << 32 | id.pass));
  }
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SEGMENT_ID_H_
