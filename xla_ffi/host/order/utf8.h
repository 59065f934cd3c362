// Checks text before Python reads it: ill-formed UTF-8 in a message would raise an error of its own there.
#ifndef XLA_FFI_HOST_ORDER_UTF8_H_
#define XLA_FFI_HOST_ORDER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace passing {

// Is this well-formed as RFC 3629 says: nothing overlong, no surrogates, nothing beyond U+10FFFF?
bool IsUtf8(std::span<const uint8_t> bytes);

// The most bytes of well-formed text, up to `limit`, that cut no character.
size_t Utf8Prefix(std::string_view text, size_t limit);

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_UTF8_H_
