// A fuzz target reads its input as a list of operations with their arguments, from the front. So a change of
// a few bytes is one operation more, less or different, and a shorter input is a shorter story.
#ifndef TESTS_FUZZ_XLA_FFI_OPERATIONS_H_
#define TESTS_FUZZ_XLA_FFI_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

// This must hold whatever the input is. Unlike an assertion, it says what was expected.
#define EXPECT_ALWAYS(condition)                                                     \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

namespace passing {

class Operations {
 public:
  Operations(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  // Zero once the input is used up.
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  uint32_t Below(uint32_t bound) { return Byte() % bound; }  // `bound` is at most 256
  uint16_t Number16() {
    const uint8_t high = Byte();
    return static_cast<uint16_t>(high << 8 | Byte());
  }
  uint32_t Number32() {
    const uint16_t high = Number16();
    return uint32_t{high} << 16 | Number16();
  }
  // At most so many, and fewer at the end of the input.
  std::span<const uint8_t> Bytes(size_t count) {
    const auto taken = rest_.first(count < rest_.size() ? count : rest_.size());
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace passing

#endif  // TESTS_FUZZ_XLA_FFI_OPERATIONS_H_
