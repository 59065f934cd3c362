#include "wire/sip_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace passing::wire {
namespace {

// The key of the paper's test values, bytes 0, 1, 2 ..., and messages that go on in the same way.
constexpr std::array<uint64_t, 2> kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};

TEST(SipHash, valuesOfItsReferenceImplementation) {
  std::vector<uint64_t> words;
  EXPECT_EQ(SipHash(kKey, words), 0x726fdb47dd0e0e31);
  words = {0x0706050403020100};
  EXPECT_EQ(SipHash(kKey, words), 0x93f5f5799a932462);
  words.push_back(0x0f0e0d0c0b0a0908);
  EXPECT_EQ(SipHash(kKey, words), 0x3f2acc7f57c29bdb);
}

}  // namespace
}  // namespace passing::wire
