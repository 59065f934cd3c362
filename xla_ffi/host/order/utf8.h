// Text that Python is to read. Whatever isn't well-formed UTF-8 can't be: a message with it would be an error in
// itself.
#ifndef XLA_FFI_HOST_ORDER_UTF8_H_
#define XLA_FFI_HOST_ORDER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace passing {

// As RFC 3629 has it: neither overlong, nor surrogates, nor beyond U+10FFFF.
bool IsUtf8(std::span<const uint8_t> bytes);

// How many bytes of well-formed text fit into `limit`, if no character is cut.
size_t Utf8Prefix(std::string_view text, size_t limit);

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_UTF8_H_
