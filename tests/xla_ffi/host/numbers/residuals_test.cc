#include "host/numbers/residuals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/cluster.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"

namespace passing {
namespace {

using reference::BitsAt;
using reference::ValueOf;

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

// What a residual is, from its definition. The subtraction and, of 1, 2 or 4 devices, the division are exact.
TEST(Residuals, areWhatRoundingKeepsBack) {
  std::mt19937_64 random(1);
  for (const DType dtype : kFloats) {
    for (const Kind kind : kKinds) {
      for (const uint32_t world_size : {1u, 3u, 64u, 129u}) {
        for (const size_t devices : {1, 2, 4}) {
          const size_t count = 1 + random() % 99;
          std::vector<Bytes> host;
          for (size_t k = 0; k < devices; ++k) host.push_back(RandomElements(dtype, kind, count, random));
          const std::vector<const void*> inputs = Pointers(host);
          const uint32_t headroom_bits = HeadroomBits(world_size);
          const ElementFormat format{.dtype = dtype, .world_size = world_size};
          const int32_t exponent = std::min(BlockExponent(format, inputs, count) + static_cast<int32_t>(random() % 3),
                                            dtype == DType::kFloat64 ? 1024 : 128);
          std::vector<uint8_t> lanes(4 * LaneCount(format, count));
          EncodeLanes(format, inputs, count, exponent, lanes.data());
          std::vector<Bytes> kept(devices, Bytes(count * SizeOf(dtype), 0xFF));
          std::vector<void*> outputs;
          for (Bytes& each : kept) outputs.push_back(each.data());
          WriteResiduals(format, inputs, lanes.data(), count, exponent, outputs);
          for (size_t i = 0; i < count; ++i) {
            const long double element = reference::HostElement(dtype, inputs, i);
            long double lost = 0;
            if (std::isfinite(element)) {
              const int64_t q = reference::Quantise(dtype, element, exponent, headroom_bits);
              const int unit = reference::UnitExponent(dtype, exponent, headroom_bits);
              lost = (element - std::ldexp(static_cast<long double>(q), unit)) / static_cast<long double>(devices);
            }
            const long double written = ValueOf(dtype, BitsAt(dtype, kept[0].data(), i));
            const uint64_t expected = reference::Round(dtype, lost);
            // Where the lanes say more than a float can hold nothing is kept back.
            const DType wide = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
            const long double sent = element - lost * static_cast<long double>(devices);
            if (std::isinf(ValueOf(wide, reference::Round(wide, sent)))) lost = 0;
            ASSERT_EQ(written, lost == 0 ? 0 : ValueOf(dtype, expected))
                << "dtype " << static_cast<int>(dtype) << " kind " << static_cast<int>(kind) << " ranks " << world_size
                << " devices " << devices << " element " << static_cast<double>(element);
          }
          for (const Bytes& other : kept) ASSERT_EQ(other, kept[0]);
        }
      }
    }
  }
}

TEST(Residuals, ofWhatIsNotFiniteAreZero) {
  const Bytes host = BytesOf<float>({NAN, HUGE_VALF, -HUGE_VALF, 1, 0x1p-40f});
  const void* input = host.data();
  uint8_t lanes[20];
  const ElementFormat format{.dtype = DType::kFloat32, .world_size = 2};
  EncodeLanes(format, {&input, 1}, 5, 1, lanes);
  float kept[5];
  void* output = kept;
  WriteResiduals(format, {&input, 1}, lanes, 5, 1, {&output, 1});
  const float expected[] = {0, 0, 0, 0, 0x1p-40f};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(kept[i], expected[i]) << i;
}

// Three ranks of two devices each sum in place, some elements of some ranks being infinite: what they gave, less what
// they kept back, is what all of them get. Large sums have segments, small ones are precise.
TEST(Residuals, andSumsAreWhatAllRanksGave) {
  constexpr uint32_t kRanks = 3, kDevices = 2;
  for (const uint64_t elements : {100u, 50'000u}) {
    ClusterOptions options;
    options.world_size = kRanks;
    options.faults = {.loss = 0.01, .delay_us = 20};
    Cluster cluster(1, options);
    const auto shape = std::make_shared<SumSpec>(SumSpec{
        .site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {elements, 7}, .local_member_count = kDevices});
    std::mt19937_64 random(2);
    std::vector<std::vector<float>> buffers, kept;  // by rank, device and leaf
    for (uint32_t i = 0; i < kRanks * kDevices; ++i) {
      for (const uint64_t count : shape->leaf_elements) {
        std::vector<float> leaf(count);
        // Of 12 bits and 30 binades: sums over the devices of a rank are exact where both have the same exponent.
        for (uint64_t k = 0; k < count; ++k) {
          leaf[k] = std::ldexp(static_cast<float>(random() % 4096) - 2048, -static_cast<int>(k % 30));
        }
        kept.emplace_back(count, NAN);
        buffers.push_back(std::move(leaf));
      }
    }
    buffers[0][5] = HUGE_VALF;
    const std::vector<std::vector<float>> given = buffers;
    uint32_t done = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Sum sum{.key = {}, .spec = shape, .inputs = {}, .outputs = {}};
      for (size_t i = 0; i < 2 * kDevices; ++i) {
        sum.inputs.push_back(buffers[rank * 2 * kDevices + i].data());
        sum.outputs.push_back(buffers[rank * 2 * kDevices + i].data());
        sum.residuals.push_back(kept[rank * 2 * kDevices + i].data());
      }
      sum.done = [&](const Failure* failure) { done += failure == nullptr; };
      cluster.Start(rank, std::move(sum));
    }
    ASSERT_TRUE(cluster.Run(10'000'000));
    ASSERT_EQ(done, kRanks);
    for (size_t leaf = 0; leaf < 2; ++leaf) {
      bool any = false;
      for (size_t k = 0; k < given[leaf].size(); ++k) {
        double sent = 0;
        for (size_t i = leaf; i < given.size(); i += 2) {
          any |= kept[i][k] != 0;
          sent += double{given[i][k]} - double{kept[i][k]};
        }
        ASSERT_EQ(buffers[leaf][k], static_cast<float>(sent)) << "leaf " << leaf << " element " << k;
      }
      EXPECT_EQ(any, elements > 720 && leaf == 0);  // small sums are precise: they keep nothing back
    }
    EXPECT_EQ(buffers[0][5], HUGE_VALF);
    EXPECT_EQ(kept[0][5], 0);
  }
}

}  // namespace
}  // namespace passing
