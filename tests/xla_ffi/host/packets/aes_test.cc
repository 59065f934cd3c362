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
  for (const Aes::Encryption encrypt : Aes::All()) {
    std::vector<uint8_t> out(size_t{Aes::kStride} * Aes::kBlockBytes);
    encrypt(aes.keys(), 0xffeeddccbbaa9988, 0x7766554433221100, Aes::kStride, out.data());
    EXPECT_EQ(Hex(out.data(), 16), "69c4e0d86a7b0430d8cdb78070b4c55a");
  }
}

TEST(Aes, allImplementationsAgree) {
  std::mt19937_64 random(1);
  const std::vector<Aes::Encryption> all = Aes::All();
  for (int round = 0; round < 50; ++round) {
    std::array<uint8_t, Aes::kKeyBytes> key;
    std::ranges::generate(key, [&] { return static_cast<uint8_t>(random()); });
    const Aes aes(key);
    const uint64_t high = random();
    const uint64_t low = round == 0 ? UINT64_MAX - 5 : random();  // the counter's lower half wraps, and carries nothing
    const uint32_t count = Aes::kStride * (1 + round % 6);
    std::vector<uint8_t> expected(size_t{count} * Aes::kBlockBytes), out(expected.size());
    all.back()(aes.keys(), high, low, count, expected.data());
    for (const Aes::Encryption encrypt : all) {
      encrypt(aes.keys(), high, low, count, out.data());
      EXPECT_EQ(out, expected);
    }
    aes.Encrypt(high, low, count, out.data());
    EXPECT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace passing
