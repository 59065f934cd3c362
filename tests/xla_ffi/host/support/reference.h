// Elements of random sums, and what every host must get of them: from the inputs alone, without a protocol.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_REFERENCE_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_REFERENCE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "host/numbers/element_classes.h"
#include "host/numbers/fixed_point.h"
#include "host/sums/sum.h"
#include "host/sums/sum_passes.h"
#include "wire/lanes.h"

namespace passing {

using Bytes = std::vector<uint8_t>;
using HostBuffers = std::vector<Bytes>;  // device-major, as Sum has them

// Makes normally distributed elements of all magnitudes; `special` is the share of NaN and infinities among them.
inline Bytes RandomLeaf(const SumSpec& shape, uint64_t elements, std::mt19937_64& random, double special) {
  Bytes bytes(elements * SizeOf(shape.dtype));
  std::normal_distribution<> normal;
  std::uniform_real_distribution<> share(0, 1);
  for (uint64_t i = 0; i < elements; ++i) {
    uint8_t* at = &bytes[i * SizeOf(shape.dtype)];
    double value = std::ldexp(normal(random), static_cast<int>(random() % 20) - 10);
    if (special > 0 && share(random) < special) {
      constexpr double kInf = std::numeric_limits<double>::infinity();
      const double specials[] = {kInf, -kInf, std::numeric_limits<double>::quiet_NaN()};
      value = specials[random() % 3];
    }
    if (shape.dtype == DType::kFloat32) {
      const float f = static_cast<float>(value);
      std::memcpy(at, &f, 4);
    } else if (shape.dtype == DType::kFloat64) {
      std::memcpy(at, &value, 8);
    } else if (shape.dtype == DType::kBFloat16) {
      const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16;
      std::memcpy(at, &bits, 2);
    } else {
      const uint64_t bits = random();
      std::memcpy(at, &bits, SizeOf(shape.dtype));
    }
  }
  return bytes;
}

// Calls f(buffer, byte, byte_count) for elements of each device: its leaves end to end, from the `begin`th on.
template <typename F>
void ForEachRange(const SumSpec& shape, uint64_t begin, uint64_t end, F&& f) {
  const size_t size = SizeOf(shape.dtype), leaf_count = shape.leaf_elements.size();
  uint64_t leaf_begin = 0;
  for (size_t leaf = 0; leaf < leaf_count; leaf_begin += shape.leaf_elements[leaf++]) {
    const uint64_t first = std::max(begin, leaf_begin);
    const uint64_t last = std::min(end, leaf_begin + shape.leaf_elements[leaf]);
    for (uint32_t device = 0; first < last && device < shape.local_member_count; ++device) {
      f(device * leaf_count + leaf, (first - leaf_begin) * size, (last - first) * size);
    }
  }
}

// As if these elements hadn't come yet. As floats: NaN.
inline void Spoil(HostBuffers& buffers, const SumSpec& shape, uint64_t begin) {
  ForEachRange(shape, begin, shape.elements(),
               [&](size_t buffer, uint64_t byte, uint64_t count) { std::memset(&buffers[buffer][byte], 0xFF, count); });
}

// Now these have.
inline void Deliver(const HostBuffers& from, HostBuffers& to, const SumSpec& shape, uint64_t begin, uint64_t end) {
  ForEachRange(shape, begin, end, [&](size_t buffer, uint64_t byte, uint64_t count) {
    std::memcpy(&to[buffer][byte], &from[buffer][byte], count);
  });
}

// Are these elements of all devices those of the reference?
inline bool AreRight(const HostBuffers& buffers, const std::vector<Bytes>& reference, const SumSpec& shape,
                     uint64_t begin, uint64_t end) {
  bool right = true;
  ForEachRange(shape, begin, end, [&](size_t buffer, uint64_t byte, uint64_t count) {
    const Bytes& expected = reference[buffer % reference.size()];
    right = right && std::memcmp(&buffers[buffer][byte], &expected[byte], count) == 0;
  });
  return right;
}

inline Bytes MaximaOf(const SumSpec& shape, const std::vector<HostBuffers>& hosts, size_t leaf) {
  std::vector<int32_t> maxima(shape.leaf_elements[leaf], std::numeric_limits<int32_t>::min());
  for (const HostBuffers& host : hosts) {
    for (uint32_t device = 0; device < shape.local_member_count; ++device) {
      const Bytes& buffer = host[device * shape.leaf_elements.size() + leaf];
      for (size_t i = 0; i < maxima.size(); ++i) {
        int32_t element;
        std::memcpy(&element, &buffer[4 * i], 4);
        maxima[i] = std::max(maxima[i], element);
      }
    }
  }
  Bytes bytes(4 * maxima.size());
  std::memcpy(bytes.data(), maxima.data(), bytes.size());
  return bytes;
}

// Leaf by leaf and block by block. `key` and the seed 0 name the random bits.
inline std::vector<Bytes> Reference(const SumSpec& shape, const std::vector<HostBuffers>& hosts, const SumKey& key) {
  const auto world_size = static_cast<uint32_t>(hosts.size());
  ElementFormat format{.dtype = shape.dtype, .wire_dtype = shape.wire_dtype, .world_size = world_size};
  format.precise = IsFloat(shape.dtype) && shape.elements() <= (shape.dtype == DType::kFloat64 ? 480 : 720);
  uint64_t block = 0;
  std::vector<Bytes> leaves;
  for (size_t leaf = 0; leaf < shape.leaf_elements.size(); ++leaf) {
    const uint64_t elements = shape.leaf_elements[leaf];
    if (shape.op == Op::kMax) {
      leaves.push_back(MaximaOf(shape, hosts, leaf));
      continue;
    }
    Bytes out(elements * SizeOf(shape.dtype));
    const uint32_t block_elements = BlockElements(format, elements);
    for (uint64_t first = 0; first < elements; first += block_elements, ++block) {
      const size_t count = std::min<uint64_t>(block_elements, elements - first);
      const auto inputs = [&](const HostBuffers& host) {
        std::vector<const void*> pointers;
        for (uint32_t device = 0; device < shape.local_member_count; ++device) {
          const Bytes& buffer = host[device * shape.leaf_elements.size() + leaf];
          pointers.push_back(buffer.data() + first * SizeOf(shape.dtype));
        }
        return pointers;
      };
      int32_t exponent = kNoExponent;
      size_t ranks_with_some = 0;
      for (const HostBuffers& host : hosts) {
        if (!IsFloat(shape.dtype)) break;
        const int32_t own = BlockExponent(format, inputs(host), count);
        exponent = std::max(exponent, own);
        ranks_with_some += own != kNoExponent;
      }
      if (ranks_with_some == 1 && !format.is_narrow()) exponent = kMovedBits;
      const size_t lane_count = LaneCount(format, count);
      std::vector<uint32_t> lanes(lane_count);
      std::vector<uint32_t> classes(count);
      uint8_t flags = 0;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        const HostBuffers& host = hosts[rank];
        Bytes encoded(4 * lane_count);
        const Rounding rounding{.key = RoundingKey({.rank = rank, .world_size = world_size}, key), .block = block};
        flags |= EncodeLanes(format, inputs(host), count, exponent, encoded.data(), rounding);
        for (size_t i = 0; i < lane_count; ++i) lanes[i] += wire::LoadLane(encoded.data(), i);
        if (!IsFloat(shape.dtype)) continue;
        std::vector<uint32_t> own(count);
        ClassifyElements(shape.dtype, inputs(host), count, own.data());
        for (size_t i = 0; i < count; ++i) classes[i] += own[i];
      }
      Bytes summed(4 * lane_count);
      for (size_t i = 0; i < lane_count; ++i) wire::StoreLane(summed.data(), i, lanes[i]);
      void* output = out.data() + first * SizeOf(shape.dtype);
      DecodeLanes(format, summed.data(), count, exponent, {&output, 1});
      if (flags != 0 && exponent != kMovedBits) ApplyClasses(shape.dtype, classes, {&output, 1});
    }
    leaves.push_back(std::move(out));
  }
  return leaves;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_REFERENCE_H_
