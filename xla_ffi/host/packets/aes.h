// Pseudorandom lanes: AES-128 (FIPS 197) of counters, by the CPU's own instructions where it has them, which are two or
// four times as fast as anything else that passes for a cipher (benchmarks/micro/README.md). They are added to lanes as
// they come, so that they needn't pass through memory.
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
  static constexpr uint32_t kRounds = 10, kLanesOfBlock = 4;
  // Blocks are made so many at a time, as their rounds overlap. 5 times as many are the lanes of a full packet.
  static constexpr uint32_t kStride = 18;
  using RoundKeys = std::array<uint8_t, kBlockBytes*(kRounds + 1)>;
  // Adds to lanes in network order, or subtracts from them, the lanes of `count` blocks, a multiple of kStride.
  // Encrypted are `low`, `low` + 1, … and `high`, each of 8 bytes in little endian. `out` may be `in`.
  using Apply = void (*)(const RoundKeys& keys, uint64_t high, uint64_t low, uint32_t count, const uint8_t* in,
                         uint8_t* out);
  struct Implementation {
    Apply add, subtract;
  };

  explicit Aes(std::span<const uint8_t, kKeyBytes> key);

  // The same for any number of lanes. `out` has room for whole strides: what is behind the lanes is undefined then.
  void Add(uint64_t high, uint64_t low, uint32_t lanes, const uint8_t* in, uint8_t* out) const {
    ApplyTo(Best().add, high, low, lanes, in, out);
  }
  void Subtract(uint64_t high, uint64_t low, uint32_t lanes, const uint8_t* in, uint8_t* out) const {
    ApplyTo(Best().subtract, high, low, lanes, in, out);
  }
  const RoundKeys& keys() const { return keys_; }

  // All that this CPU can do, which are alike in what they write. The fastest is the first one, plain C++ the last.
  static std::vector<Implementation> All();

 private:
  static const Implementation& Best();
  void ApplyTo(Apply apply, uint64_t high, uint64_t low, uint32_t lanes, const uint8_t* in, uint8_t* out) const;

  RoundKeys keys_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_AES_H_
