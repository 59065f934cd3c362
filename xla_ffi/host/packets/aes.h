// AES-128 (FIPS 197) of counters, by the CPU's own instructions where it has them: two or four times as fast as
// anything else that passes for a cipher (docs/reference/benchmarks.md).
#ifndef XLA_FFI_HOST_PACKETS_AES_H_
#define XLA_FFI_HOST_PACKETS_AES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace passing {

class Aes {
 public:
  static constexpr size_t kKeyBytes = 16, kBlockBytes = 16;
  static constexpr uint32_t kRounds = 10;
  // Blocks are made so many at a time, as their rounds overlap.
  static constexpr uint32_t kStride = 16;
  using RoundKeys = std::array<uint8_t, kBlockBytes*(kRounds + 1)>;
  // Encrypts `count` blocks, a multiple of kStride: `low`, `low` + 1, … and `high`, each of 8 bytes in little endian.
  using Encryption = void (*)(const RoundKeys& keys, uint64_t high, uint64_t low, uint32_t count, uint8_t* out);

  explicit Aes(std::span<const uint8_t, kKeyBytes> key);

  void Encrypt(uint64_t high, uint64_t low, uint32_t count, uint8_t* out) const {
    Best()(keys_, high, low, count, out);
  }
  const RoundKeys& keys() const { return keys_; }

  // All that this CPU can do, which are alike in what they write. The fastest is the first one, plain C++ the last.
  static std::vector<Encryption> All();

 private:
  static Encryption Best();

  RoundKeys keys_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_AES_H_
