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
  EXPECT_EQ(Hex(&aes.keys()[160], 16), "13111d7fe3944a17f307a78b4d2b30c5");
  for (const Aes::Implementation& one : Aes::All()) {
    std::vector<uint8_t> lanes(size_t{Aes::kStride} * Aes::kBlockBytes);
    one.add(aes.keys(), 0xffeeddccbbaa9988, 0x7766554433221100, Aes::kStride, lanes.data(), lanes.data());
    EXPECT_EQ(Hex(lanes.data(), 16), "69c4e0d86a7b0430d8cdb78070b4c55a");
  }
}

TEST(Aes, allImplementationsAgree) {
  std::mt19937_64 random(1);
  const std::vector<Aes::Implementation> all = Aes::All();
  const auto bytes = [&](size_t count) {
    std::vector<uint8_t> some(count);
    std::ranges::generate(some, [&] { return static_cast<uint8_t>(random()); });
    return some;
  };
  for (uint32_t round = 0; round < 50; ++round) {
    std::array<uint8_t, Aes::kKeyBytes> key;
    std::ranges::generate(key, [&] { return static_cast<uint8_t>(random()); });
    const Aes aes(key);
    const uint64_t high = random();
    const uint64_t low = round == 0 ? UINT64_MAX - 5 : random();  // the counter's lower half wraps, and carries nothing
    const uint32_t count = Aes::kStride * (1 + round % 5);
    const std::vector<uint8_t> in = bytes(size_t{count} * Aes::kBlockBytes);
    std::vector<uint8_t> added(in.size()), subtracted(in.size()), out(in.size());
    all.back().add(aes.keys(), high, low, count, in.data(), added.data());
    all.back().subtract(aes.keys(), high, low, count, added.data(), out.data());
    EXPECT_EQ(out, in);
    all.back().subtract(aes.keys(), high, low, count, in.data(), subtracted.data());
    for (const Aes::Implementation& one : all) {
      one.add(aes.keys(), high, low, count, in.data(), out.data());
      EXPECT_EQ(out, added);
      one.subtract(aes.keys(), high, low, count, in.data(), out.data());
      EXPECT_EQ(out, subtracted);
    }
    // Any number of lanes is the beginning of that, and nothing is read behind them.
    const uint32_t lanes = 1 + static_cast<uint32_t>(random() % (count * Aes::kLanesOfBlock));
    added.resize(size_t{4} * lanes);
    const std::vector<uint8_t> given(in.begin(), in.begin() + static_cast<ptrdiff_t>(added.size()));
    aes.Add(high, low, lanes, given.data(), out.data());
    EXPECT_TRUE(std::equal(added.begin(), added.end(), out.begin()));
    out = in;
    aes.Add(high, low, lanes, out.data(), out.data());
    EXPECT_TRUE(std::equal(added.begin(), added.end(), out.begin()));
  }
}

}  // namespace
}  // namespace passing
