#include "host/order/utf8.h"

namespace passing {
namespace {

bool IsContinuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Bytes after the first one of a character; -1 if none begins so.
int Following(uint8_t lead) {
  if (lead < 0x80) return 0;
  if (lead >= 0xC2 && lead <= 0xDF) return 1;
  if (lead >= 0xE0 && lead <= 0xEF) return 2;
  if (lead >= 0xF0 && lead <= 0xF4) return 3;
  return -1;
}

// The second byte tells what is overlong, a surrogate, or too large.
bool MayFollow(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0;
    case 0xED:
      return second <= 0x9F;
    case 0xF0:
      return second >= 0x90;
    case 0xF4:
      return second <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

bool IsUtf8(std::span<const uint8_t> bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const uint8_t lead = bytes[at++];
    const int following = Following(lead);
    if (following < 0 || bytes.size() - at < static_cast<size_t>(following)) return false;
    if (following > 0 && !MayFollow(lead, bytes[at])) return false;
    for (int i = 0; i < following; ++i) {
      if (!IsContinuation(bytes[at++])) return false;
    }
  }
  return true;
}

size_t Utf8Prefix(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  while (limit > 0 && IsContinuation(static_cast<uint8_t>(text[limit]))) --limit;
  return limit;
}

}  // namespace passing
