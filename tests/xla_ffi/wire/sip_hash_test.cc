#include "wire/sip_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
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

TEST(SipHash, manyAtOnceAreTheSameOnes) {
  std::mt19937_64 random(1);
  for (size_t length = 0; length <= 4; ++length) {
    std::vector<WordOfEach> words(length);
    for (WordOfEach& each : words) std::ranges::generate(each, [&] { return random(); });
    const std::array<uint64_t, 2> key{random(), random()};
    const WordOfEach hashes = SipHashes(key, words);
    for (size_t i = 0; i < kSipHashesAtOnce; ++i) {
      std::vector<uint64_t> message;
      for (const WordOfEach& each : words) message.push_back(each[i]);
      EXPECT_EQ(hashes[i], SipHash(key, message)) << length << " words";
    }
  }
}

}  // namespace
}  // namespace passing::wire
