// How order messages are written and read: numbers in network byte order, end to end.
#ifndef XLA_FFI_HOST_ORDER_MESSAGE_H_
#define XLA_FFI_HOST_ORDER_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace passing {

inline void Put(std::string& out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint64_t Take(size_t bytes) {
    uint64_t value = 0;
    for (uint8_t byte : TakeBytes(bytes)) value = value << 8 | byte;
    return value;
  }
  std::span<const uint8_t> TakeBytes(size_t bytes) {
    if (bytes > bytes_.size()) {
      ok_ = false;
      bytes = 0;
    }
    auto taken = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }
  bool ok() const { return ok_; }
  std::span<const uint8_t> rest() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_MESSAGE_H_
