#include "host/packets/aes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace passing {
namespace {

std::string Hex(const uint8_t* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[bytes[i] >> shift & 15];
  }
  return text;
}

// FIPS 197, appendix C.1.
TEST(Aes, encryptsAsTheStandardSays) {
  std::array<uint8_t, Aes::kKeyBytes> key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  const Aes aes(key);
  EXPECT_EQ(Hex(&aes.schedule().keys[160], 16), "13111d7fe3944a17f307a78b4d2b30c5");
  for (const Aes::Implementation& one : Aes::All()) {
    std::vector<uint8_t> lanes(Aes::kBlockBytes);
    const Aes::Counters counters{.high = 0xffeeddccbbaa9988, .added = 0x7766554433221100};
    one.add(aes.schedule(), counters, Aes::kLanesOfBlock, lanes.data(), lanes.data());
    EXPECT_EQ(Hex(lanes.data(), 16), "69c4e0d86a7b0430d8cdb78070b4c55a");
  }
}

std::vector<uint8_t> RandomBytes(size_t count, std::mt19937_64& random) {
  std::vector<uint8_t> bytes(count);
  std::ranges::generate(bytes, [&] { return static_cast<uint8_t>(random()); });
  return bytes;
}

// Any number of lanes, at any address, in place or not. Nothing is written around them. (That nothing is read there,
// either, is what the sanitizer of addresses sees.)
TEST(Aes, allImplementationsAgree) {
  std::mt19937_64 random(1);
  const std::vector<Aes::Implementation> all = Aes::All();
  using Member = Aes::Apply Aes::Implementation::*;
  for (uint32_t lanes = 0; lanes <= Aes::kMaxBlocks * Aes::kLanesOfBlock; ++lanes) {
    std::array<uint8_t, Aes::kKeyBytes> key;
    std::ranges::generate(key, [&] { return static_cast<uint8_t>(random()); });
    const Aes aes(key);
    const Aes::Counters counters{
        .high = random(), .added = random() / 256 * 256, .subtracted = lanes % 2 == 0 ? 0 : random() / 256 * 256};
    const size_t offset = random() % 64, count = size_t{4} * lanes;
    const std::vector<uint8_t> in = RandomBytes(count, random), around = RandomBytes(offset + count + 64, random);
    for (const Member member :
         {&Aes::Implementation::add, &Aes::Implementation::subtract, &Aes::Implementation::add_and_subtract}) {
      std::vector<uint8_t> expected = around;
      (all.back().*member)(aes.schedule(), counters, lanes, in.data(), &expected[offset]);
      EXPECT_TRUE(std::equal(around.begin(), around.begin() + static_cast<ptrdiff_t>(offset), expected.begin()));
      EXPECT_TRUE(std::equal(around.end() - 64, around.end(), expected.end() - 64));
      for (const Aes::Implementation& one : all) {
        std::vector<uint8_t> out = around;
        (one.*member)(aes.schedule(), counters, lanes, in.data(), &out[offset]);
        EXPECT_EQ(out, expected) << lanes << " lanes at " << offset;
        out = around;
        std::copy(in.begin(), in.end(), &out[offset]);
        (one.*member)(aes.schedule(), counters, lanes, &out[offset], &out[offset]);
        EXPECT_EQ(out, expected) << lanes << " lanes in place at " << offset;
      }
    }
    // One stream is added and the other one subtracted: at once, or one after the other.
    std::vector<uint8_t> there_and_back(count), at_once(count);
    aes.AddAndSubtract(counters, lanes, in.data(), at_once.data());
    aes.Add(counters, lanes, in.data(), there_and_back.data());
    aes.Subtract(counters, lanes, there_and_back.data(), there_and_back.data());
    EXPECT_EQ(there_and_back, at_once);
    const Aes::Counters swapped{.high = counters.high, .added = counters.subtracted, .subtracted = counters.added};
    aes.AddAndSubtract(swapped, lanes, at_once.data(), there_and_back.data());
    EXPECT_EQ(there_and_back, in);
  }
}

}  // namespace
}  // namespace passing
