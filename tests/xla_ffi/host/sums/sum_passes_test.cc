#include "host/sums/sum_passes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "host/sums/sums_in_flight.h"
#include "wire/header.h"
#include "wire/lanes.h"

// Bytes on the heap, now and at most. No test in this executable has threads.
namespace {
size_t live_bytes = 0, peak_bytes = 0;
constexpr size_t kPrefix = alignof(std::max_align_t);
}  // namespace

void* operator new(size_t bytes) {
  auto* block = static_cast<std::byte*>(std::malloc(kPrefix + bytes));
  if (block == nullptr) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(block) = bytes;
  live_bytes += bytes;
  peak_bytes = std::max(peak_bytes, live_bytes);
  return block + kPrefix;
}
// As the standard has it; address sanitizer's takes memory of its own, which the deletions below would misread.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
// Inlined, g++ takes these for mistakes.
[[gnu::noinline]] void operator delete(void* at) noexcept {
  if (at == nullptr) return;
  auto* block = static_cast<std::byte*>(at) - kPrefix;
  live_bytes -= *reinterpret_cast<size_t*>(block);
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* at, size_t) noexcept { operator delete(at); }

namespace passing {
namespace {

constexpr uint32_t kLanes = 360;
constexpr PlanLimits kLimits{.lanes_per_chunk = kLanes, .window = 256};

// Returns the lanes as they came, like a switch with one rank.
void Pass(SumPass& sum) {
  uint8_t lanes[4 * kLanes];
  for (uint32_t i = 0; i < sum.plan().segment_count(); ++i) {
    const Segment& segment = sum.plan().segment(i);
    const std::vector<int32_t> exponents = sum.Exponents(segment);
    for (uint32_t chunk = segment.exponent_chunks; chunk < segment.exponent_chunks + segment.data_chunks; ++chunk) {
      const uint8_t flags = sum.Encode(segment, chunk, exponents, lanes);
      sum.Decode(segment, chunk, exponents, lanes, flags);
    }
  }
}

// Sums in place; returns the bytes that were on the heap at most, beside `elements`.
size_t PeakBytes(std::vector<float>& elements) {
  const auto shape = std::make_shared<SumSpec>(
      SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {elements.size()}});
  const size_t before = peak_bytes = live_bytes;
  Sum sum{.key = {}, .spec = shape, .inputs = {elements.data()}, .outputs = {elements.data()}};
  std::unique_ptr<SumPass> active = std::make_unique<ElementPass>(std::move(sum), kLimits, Rank{}, /*started_us=*/0);
  for (; active != nullptr; active = active->NextPass(kLimits)) Pass(*active);
  return peak_bytes - before;
}

// A host's memory must not grow with the sum. What does is the plan, some 50 bytes for the 92 KB of a segment.
TEST(SumPasses, needsNoMemoryByTheElement) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {1.0f, kNaN}) {
    std::vector<float> elements(16 << 20, value);
    EXPECT_LT(PeakBytes(elements), elements.size() * sizeof(float) / 500) << value;
    for (const float x : elements) ASSERT_EQ(std::isnan(x), std::isnan(value));
  }
}

// The worst that flags can do: every second chunk.
TEST(SumPasses, scatteredInfinities) {
  std::vector<float> elements(4 << 20, 1.0f);
  for (size_t i = 0; i < elements.size(); i += 2 * kLanes) elements[i] = -HUGE_VALF;
  EXPECT_LT(PeakBytes(elements), elements.size() * sizeof(float) / 20);
  for (size_t i = 0; i < elements.size(); ++i) ASSERT_EQ(elements[i], i % (2 * kLanes) == 0 ? -HUGE_VALF : 1.0f);
}

// A block that only one rank has travels as bits, those of NaN among them; the classes of its neighbours in the same
// chunk are none of its business, even if its bits look like the marks of classes.
TEST(SumPasses, movedBlocksBesideNaN) {
  std::vector<float> elements(1000, 1.0f);  // 63 blocks of 16 elements
  const uint32_t payloads[] = {0x7FC00001, 0x7FC00002, 0x7FC00003, 0xFF812345, 0x80000000, 0x7F800000};
  std::memcpy(&elements[16], payloads, sizeof(payloads));
  elements[40] = NAN;
  const auto shape = std::make_shared<SumSpec>(
      SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {elements.size()}});
  Sum sum{.key = {}, .spec = shape, .inputs = {elements.data()}, .outputs = {elements.data()}};
  ElementPass first(std::move(sum), kLimits, Rank{}, /*started_us=*/0);
  ASSERT_EQ(first.plan().BlockElementsOf(0), 16u);
  const Segment& segment = first.plan().segment(0);
  std::vector<int32_t> exponents = first.Exponents(segment);
  exponents[1] = kMovedBits;
  uint8_t lanes[4 * kLanes];
  for (uint32_t chunk = segment.exponent_chunks; chunk < segment.chunk_count(); ++chunk) {
    const uint8_t flags = first.Encode(segment, chunk, exponents, lanes);
    EXPECT_EQ(flags, chunk == segment.exponent_chunks ? wire::kFlagNaN : 0);
    first.Decode(segment, chunk, exponents, lanes, flags);
  }
  const auto second = first.NextPass(kLimits);
  ASSERT_NE(second, nullptr);
  Pass(*second);
  EXPECT_EQ(std::memcmp(&elements[16], payloads, sizeof(payloads)), 0);
  EXPECT_TRUE(std::isnan(elements[40]));
  for (size_t i = 0; i < elements.size(); ++i) {
    if ((i >= 16 && i < 22) || i == 40) continue;
    ASSERT_EQ(elements[i], 1.0f) << i;
  }
}

// Whoever asks is told of the elements before the first that isn't there, or that a second pass will change.
TEST(SumPasses, tellsWhatIsWritten) {
  constexpr uint64_t kSegment = 64 * kLanes;
  for (const bool infinite : {false, true}) {
    std::vector<float> elements(5 * kSegment, 1.0f);
    if (infinite) elements[3 * kSegment + kLanes] = HUGE_VALF;
    const auto shape = std::make_shared<SumSpec>(
        SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {elements.size()}});
    std::vector<uint64_t> written;
    Sum sum{.key = {}, .spec = shape, .inputs = {elements.data()}, .outputs = {elements.data()}};
    sum.pieces.emplace().written = [&](uint64_t count) { written.push_back(count); };
    SumsInFlight sums;  // which alone may place segments
    SumPass& active = sums.Add(ElementPass::Of(std::move(sum), kLimits, Rank{}, /*started_us=*/0));
    Pass(active);
    for (int i = 0; i < 5; ++i) sums.CountPlaced(active);
    for (const uint32_t segment : {1u, 0u, 3u, 4u}) EXPECT_FALSE(active.OnSegmentDone(segment));
    EXPECT_EQ(written, std::vector<uint64_t>{2 * kSegment});
    EXPECT_TRUE(active.OnSegmentDone(2));
    EXPECT_EQ(written.size(), 2u);
    EXPECT_EQ(written.back(), infinite ? 3 * kSegment + kLanes : 5 * kSegment);
  }
}

// This host sends the maximum of its devices, and gets back that of all hosts.
TEST(SumPasses, maximaOfTwoDevices) {
  const auto shape = std::make_shared<SumSpec>(SumSpec{
      .site_name = "x", .dtype = DType::kInt32, .leaf_elements = {3, 1}, .local_member_count = 2, .op = Op::kMax});
  int32_t a[] = {-5, INT32_MIN, 7}, b[] = {-6, INT32_MIN, INT32_MAX}, a_last[] = {-1}, b_last[] = {0};
  Sum sum{.key = {}, .spec = shape, .inputs = {a, a_last, b, b_last}, .outputs = {a, a_last, b, b_last}};
  ElementPass active(std::move(sum), kLimits, Rank{}, 0);
  const Segment& segment = active.plan().segment(0);
  ASSERT_EQ(segment.chunk_count(), 1u);
  uint8_t lanes[4 * kLanes];
  EXPECT_EQ(active.Encode(segment, 0, {}, lanes), 0);
  const int32_t sent[] = {-5, INT32_MIN, INT32_MAX, 0};
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<int32_t>(wire::LoadLane(lanes, i)), sent[i]) << i;

  wire::StoreLane(lanes, 1, static_cast<uint32_t>(-9));  // another host's
  active.Decode(segment, 0, {}, lanes, /*flags=*/0);
  for (const int32_t* device : {a, b}) {
    EXPECT_EQ(device[0], -5);
    EXPECT_EQ(device[1], -9);
    EXPECT_EQ(device[2], INT32_MAX);
  }
  EXPECT_EQ(a_last[0], 0);
  EXPECT_EQ(b_last[0], 0);
}

}  // namespace
}  // namespace passing
