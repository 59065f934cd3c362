// Elements of random sums, and what every host must get of them: from the inputs alone, without a protocol.
#ifndef TESTS_XLA_FFI_HOST_REFERENCE_H_
#define TESTS_XLA_FFI_HOST_REFERENCE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "host/element_classes.h"
#include "host/fixed_point.h"
#include "host/sum.h"
#include "wire/lanes.h"

namespace passing {

using Bytes = std::vector<uint8_t>;
using HostBuffers = std::vector<Bytes>;  // device-major, as Sum has them

// Of normally distributed elements of all magnitudes; `special` is the share of NaN and infinities among them.
inline Bytes RandomLeaf(const SumShape& shape, uint64_t elements, std::mt19937_64& random, double special) {
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

inline Bytes MaximaOf(const SumShape& shape, const std::vector<HostBuffers>& hosts, size_t leaf) {
  std::vector<int32_t> maxima(shape.leaf_elements[leaf], std::numeric_limits<int32_t>::min());
  for (const HostBuffers& host : hosts) {
    for (uint32_t device = 0; device < shape.device_count; ++device) {
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

// Leaf by leaf and block by block.
inline std::vector<Bytes> Reference(const SumShape& shape, const std::vector<HostBuffers>& hosts) {
  const auto world_size = static_cast<uint32_t>(hosts.size());
  const uint32_t headroom = HeadroomBits(world_size);
  std::vector<Bytes> leaves;
  for (size_t leaf = 0; leaf < shape.leaf_elements.size(); ++leaf) {
    const uint64_t elements = shape.leaf_elements[leaf];
    if (shape.op == Op::kMax) {
      leaves.push_back(MaximaOf(shape, hosts, leaf));
      continue;
    }
    Bytes out(elements * SizeOf(shape.dtype));
    for (uint64_t first = 0; first < elements; first += kBlockElements) {
      const size_t count = std::min<uint64_t>(kBlockElements, elements - first);
      const auto inputs = [&](const HostBuffers& host) {
        std::vector<const void*> pointers;
        for (uint32_t device = 0; device < shape.device_count; ++device) {
          const Bytes& buffer = host[device * shape.leaf_elements.size() + leaf];
          pointers.push_back(buffer.data() + first * SizeOf(shape.dtype));
        }
        return pointers;
      };
      int32_t exponent = kNoExponent;
      for (const HostBuffers& host : hosts) {
        if (!IsFloat(shape.dtype)) break;
        exponent = std::max(exponent, BlockExponent(shape.dtype, inputs(host), count));
      }
      const size_t lane_count = LaneCount(shape.dtype, count, headroom);
      std::vector<uint32_t> lanes(lane_count);
      std::vector<uint32_t> classes(count);
      uint8_t flags = 0;
      for (const HostBuffers& host : hosts) {
        Bytes encoded(4 * lane_count);
        flags |= EncodeLanes(shape.dtype, inputs(host), count, exponent, headroom, encoded.data());
        for (size_t i = 0; i < lane_count; ++i) lanes[i] += wire::LoadLane(encoded.data(), i);
        if (!IsFloat(shape.dtype)) continue;
        std::vector<uint32_t> own(count);
        ClassifyElements(shape.dtype, inputs(host), count, own.data());
        for (size_t i = 0; i < count; ++i) classes[i] += own[i];
      }
      Bytes summed(4 * lane_count);
      for (size_t i = 0; i < lane_count; ++i) wire::StoreLane(summed.data(), i, lanes[i]);
      void* output = out.data() + first * SizeOf(shape.dtype);
      DecodeLanes(shape.dtype, summed.data(), count, exponent, headroom, {&output, 1});
      if (flags != 0) ApplyClasses(shape.dtype, classes, {&output, 1});
    }
    leaves.push_back(std::move(out));
  }
  return leaves;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_REFERENCE_H_
