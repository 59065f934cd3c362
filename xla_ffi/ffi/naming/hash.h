// A hash names a sum in few bytes, alike on every host.
#ifndef XLA_FFI_FFI_NAMING_HASH_H_
#define XLA_FFI_FFI_NAMING_HASH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "host/numbers/split_mix.h"

namespace passing {

// 64 bits tell some thousand sums of a job apart: the odds that any two collide are below 1e-12.
class Hash {
 public:
  void Add(uint64_t value) {
    state_ = SplitMix64(state_ ^ value);  // so that every bit of the state depends on every bit before
  }
  void Add(std::string_view text) {
    Add(text.size());  // so that "a", "bc" isn't "ab", "c"
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      for (size_t j = i; j < std::min(i + 8, text.size()); ++j) word = word << 8 | static_cast<uint8_t>(text[j]);
      Add(word);
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_FFI_NAMING_HASH_H_
