#include "host/numbers/host_elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"

namespace passing {
namespace {

using reference::BitsAt;
using reference::kDTypes;
using reference::ValueOf;

// SumLocal over any count, outputs in place of the inputs, every bit pattern.
TEST(HostElements, sumLocalInPlace) {
  std::mt19937_64 random(9);
  for (DType dtype : kDTypes) {
    for (size_t devices = 1; devices <= 4; ++devices) {
      const size_t count = 2 * kMaxBlockElements + 77;
      std::vector<Bytes> buffers(devices, Bytes(count * SizeOf(dtype)));
      for (Bytes& buffer : buffers) {
        for (uint8_t& byte : buffer) byte = static_cast<uint8_t>(random());
      }
      std::vector<uint64_t> want(count);
      for (size_t i = 0; i < count; ++i) {
        if (IsFloat(dtype)) {
          want[i] = reference::Round(dtype, reference::HostElement(dtype, Pointers(buffers), i));
        } else {
          for (const Bytes& buffer : buffers) want[i] += BitsAt(dtype, buffer.data(), i);
          want[i] &= ~uint64_t{0} >> (64 - 8 * SizeOf(dtype));
        }
      }
      std::vector<void*> outputs;
      for (Bytes& buffer : buffers) outputs.push_back(buffer.data());
      SumLocal(dtype, Pointers(buffers), count, outputs);
      for (size_t i = 0; i < count; ++i) {
        const uint64_t got = BitsAt(dtype, outputs[0], i);
        if (IsFloat(dtype) && std::isnan(ValueOf(dtype, want[i]))) {
          ASSERT_TRUE(std::isnan(ValueOf(dtype, got)));
        } else {
          ASSERT_EQ(got, want[i]) << "dtype " << int(dtype) << " devices " << devices << " element " << i;
        }
      }
      for (const Bytes& buffer : buffers) EXPECT_EQ(buffer, buffers[0]);
    }
  }
}

// The same for maxima.
TEST(HostElements, maxLocalInPlace) {
  std::mt19937_64 random(10);
  for (size_t devices = 1; devices <= 4; ++devices) {
    RandomMaxima of(devices, 2 * kMaxBlockElements + 77, random);
    std::vector<void*> outputs;
    for (auto& buffer : of.buffers) outputs.push_back(buffer.data());
    MaxLocal(of.inputs(), of.maxima.size(), outputs);
    for (const auto& buffer : of.buffers) EXPECT_EQ(buffer, of.maxima) << devices;
  }
}

// All 65536 values of the 16-bit floats survive widening and narrowing.
TEST(HostElements, sixteenBitFloatsSurvive) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<uint16_t> all(1 << 16), out(1 << 16);
    std::iota(all.begin(), all.end(), 0);
    const void* input = all.data();
    void* output = out.data();
    SumLocal(dtype, {&input, 1}, all.size(), {&output, 1});
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(ValueOf(dtype, i))) {
        ASSERT_TRUE(std::isnan(ValueOf(dtype, out[i])));
      } else {
        ASSERT_EQ(out[i], i);
      }
    }
  }
}

// float32 of any bits, in place of which their float16 or bfloat16 comes.
TEST(HostElements, elementsThatWereAddedUpBeforeAreRounded) {
  std::mt19937_64 random(11);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Bytes buffer((2 * kMaxBlockElements + 77) * sizeof(float));
    for (uint8_t& byte : buffer) byte = static_cast<uint8_t>(random());
    const Bytes before = buffer;
    const void* input = buffer.data();
    void* output = buffer.data();
    const size_t count = buffer.size() / sizeof(float);
    SumLocal(Widened(dtype), {&input, 1}, count, {&output, 1});
    for (size_t i = 0; i < count; ++i) {
      const long double value = ValueOf(DType::kFloat32, BitsAt(DType::kFloat32, before.data(), i));
      const uint64_t got = BitsAt(Widened(dtype), buffer.data(), i);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(ValueOf(dtype, got))) << got;
      } else {
        ASSERT_EQ(got, reference::Round(dtype, value)) << "element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace passing
