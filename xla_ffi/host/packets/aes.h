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
  // Streams have no more blocks than this, and begin at a multiple of 256: so only one byte changes from block to
  // block, and the first round need be done only once (counter-mode caching: Bernstein, Schwabe, INDOCRYPT 2008).
  static constexpr uint32_t kMaxBlocks = 96;
  struct Schedule {
    std::array<uint8_t, kBlockBytes*(kRounds + 1)> keys;
    // The bits in which blocks differ from the first one after the first round, whatever the rest of them is.
    std::array<uint8_t, kBlockBytes * kMaxBlocks> changes;
  };
  // Two streams of blocks. Encrypted are `added`, `added` + 1, … and `high` for the one, and `subtracted`,
  // `subtracted` + 1, … and `high` for the other, each of 8 bytes in little endian.
  struct Counters {
    uint64_t high, added = 0, subtracted = 0;
  };
  // Adds the one stream to lanes in network order, or subtracts the other one, or does both in one pass, which is
  // faster. `out` may be `in`.
  using Apply = void (*)(const Schedule& schedule, const Counters& counters, uint32_t lanes, const uint8_t* in,
                         uint8_t* out);
  struct Implementation {
    Apply add, subtract, add_and_subtract;
  };

  explicit Aes(std::span<const uint8_t, kKeyBytes> key);

  void Add(const Counters& counters, uint32_t lanes, const uint8_t* in, uint8_t* out) const {
    ApplyBy(&Implementation::add, counters, lanes, in, out);
  }
  void Subtract(const Counters& counters, uint32_t lanes, const uint8_t* in, uint8_t* out) const {
    ApplyBy(&Implementation::subtract, counters, lanes, in, out);
  }
  void AddAndSubtract(const Counters& counters, uint32_t lanes, const uint8_t* in, uint8_t* out) const {
    ApplyBy(&Implementation::add_and_subtract, counters, lanes, in, out);
  }
  const Schedule& schedule() const { return schedule_; }

  // All that this CPU can do, which are alike in what they write. The fastest is the first one, plain C++ the last.
  static std::vector<Implementation> All();

 private:
  void ApplyBy(Apply Implementation::*what, const Counters& counters, uint32_t lanes, const uint8_t* in,
               uint8_t* out) const;

  Schedule schedule_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_AES_H_
