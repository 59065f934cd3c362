// Elements of all kinds, and their sum as ranks and a switch make it: for tests of everything that has a part in it.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_BLOCK_SUMS_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_BLOCK_SUMS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "host/numbers/element_classes.h"
#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"

namespace passing {

using Bytes = std::vector<uint8_t>;

inline constexpr uint32_t kWorldSizes[] = {1, 2, 3, 8, 63, 64, 128, 129, 1023, kMaxWorldSize};

inline std::vector<const void*> Pointers(const std::vector<Bytes>& buffers) {
  std::vector<const void*> pointers;
  for (const Bytes& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

inline void SetBits(DType dtype, void* base, size_t index, uint64_t bits) {
  std::memcpy(static_cast<uint8_t*>(base) + index * SizeOf(dtype), &bits, SizeOf(dtype));
}

template <typename T>
Bytes BytesOf(std::initializer_list<T> values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

// The kinds of elements of a block.
enum class Kind { kAnyBits, kUniform, kTiny, kHugeAndTiny, kExtremes };
inline constexpr Kind kKinds[] = {Kind::kAnyBits, Kind::kUniform, Kind::kTiny, Kind::kHugeAndTiny, Kind::kExtremes};

// Finite floats of one kind, or integers of any bits.
inline Bytes RandomElements(DType dtype, Kind kind, size_t count, std::mt19937_64& random) {
  Bytes bytes(count * SizeOf(dtype));
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    if (IsFloat(dtype)) {
      const auto [precision, max_exponent, last_bit] = reference::FormatOf(dtype);
      const auto unit = static_cast<long double>(bits >> 11) * 0x1p-53L;  // [0, 1)
      const long double signed_unit = bits & 1 ? -unit : unit;
      const long double largest = std::ldexp(2 - std::ldexp(1.0L, 1 - precision), max_exponent);
      const bool huge = bits & 2;
      switch (kind) {
        case Kind::kAnyBits:
          while (!std::isfinite(reference::ValueOf(dtype, bits))) bits = random();
          break;
        case Kind::kUniform:
          bits = reference::Round(dtype, signed_unit);
          break;
        case Kind::kTiny:
          bits = reference::Round(dtype, std::ldexp(signed_unit, last_bit + 6));
          break;
        case Kind::kHugeAndTiny:
          bits = reference::Round(
              dtype, huge ? std::ldexp(signed_unit, max_exponent) : std::ldexp(signed_unit, last_bit + 40));
          break;
        case Kind::kExtremes: {
          const long double values[] = {largest, 0,     std::ldexp(1.0L, last_bit),
                                        1,       -0.0L, std::ldexp(1.0L, max_exponent)};
          const long double value = values[(bits >> 8) % std::size(values)];
          bits = reference::Round(dtype, bits & 1 ? -value : value);
        }
      }
    }
    SetBits(dtype, bytes.data(), i, bits);
  }
  return bytes;
}

// The outcome of a sum over H ranks and a switch.
struct Result {
  int32_t exponent = kNoExponent;
  uint8_t flags = 0;
  std::vector<uint32_t> lanes;    // summed
  std::vector<uint32_t> classes;  // summed
  Bytes output;
};

inline Result SumOverRanks(DType dtype, const std::vector<std::vector<const void*>>& hosts, size_t count,
                           size_t outputs = 1) {
  Result result;
  const ElementFormat format{.dtype = dtype, .world_size = static_cast<uint32_t>(hosts.size())};
  for (const auto& inputs : hosts) result.exponent = std::max(result.exponent, BlockExponent(format, inputs, count));
  result.lanes.resize(LaneCount(format, count));
  result.classes.resize(count);
  for (const auto& inputs : hosts) {
    Bytes encoded(4 * result.lanes.size());
    result.flags |= EncodeLanes(format, inputs, count, result.exponent, encoded.data());
    for (size_t i = 0; i < result.lanes.size(); ++i) result.lanes[i] += wire::LoadLane(encoded.data(), i);
    std::vector<uint32_t> own(count);
    ClassifyElements(dtype, inputs, count, own.data());
    for (size_t i = 0; i < count; ++i) result.classes[i] += own[i];
  }
  Bytes summed(4 * result.lanes.size());
  for (size_t i = 0; i < result.lanes.size(); ++i) wire::StoreLane(summed.data(), i, result.lanes[i]);
  std::vector<Bytes> buffers(outputs, Bytes(count * SizeOf(dtype)));
  std::vector<void*> pointers;
  for (Bytes& buffer : buffers) pointers.push_back(buffer.data());
  DecodeLanes(format, summed.data(), count, result.exponent, pointers);
  if (result.flags) {
    // The first host's classes survive in the elements, and those alone are touched.
    std::vector<uint32_t> own(count), kept(count);
    ClassifyElements(dtype, hosts[0], count, own.data());
    const Bytes decoded = buffers[0];
    MarkClasses(dtype, own, pointers[0]);
    ReadClasses(dtype, pointers[0], count, kept.data());
    EXPECT_EQ(kept, own);
    for (size_t i = 0; i < count; ++i) {
      if (own[i] == 0) {
        EXPECT_EQ(reference::BitsAt(dtype, buffers[0].data(), i), reference::BitsAt(dtype, decoded.data(), i));
      }
    }
    ApplyClasses(dtype, result.classes, pointers);
  }
  for (const Bytes& buffer : buffers) EXPECT_EQ(buffer, buffers[0]);
  result.output = buffers[0];
  return result;
}

// int32 of which the greatest is taken: `maxima` over the devices.
struct RandomMaxima {
  std::vector<std::vector<int32_t>> buffers;  // by device
  std::vector<int32_t> maxima;

  RandomMaxima(size_t devices, size_t count, std::mt19937_64& random)
      : buffers(devices, std::vector<int32_t>(count)), maxima(count, INT32_MIN) {
    for (auto& buffer : buffers) {
      for (size_t i = 0; i < count; ++i) {
        const int32_t values[] = {static_cast<int32_t>(random()), INT32_MIN, INT32_MAX, -1, 0, 1};
        buffer[i] = values[random() % std::size(values)];
        maxima[i] = std::max(maxima[i], buffer[i]);
      }
    }
  }
  std::vector<const void*> inputs() const {
    std::vector<const void*> pointers;
    for (const auto& buffer : buffers) pointers.push_back(buffer.data());
    return pointers;
  }
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_BLOCK_SUMS_H_
