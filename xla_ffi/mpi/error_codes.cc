#include "mpi/error_codes.h"

#include <algorithm>

namespace passing::mpi {
namespace {

std::string Cut(std::string text, size_t bytes) {
  if (text.size() <= bytes) return text;
  bytes -= 3;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;  // no half of a character
  text.resize(bytes);
  return text + "...";
}

}  // namespace

int ErrorCodes::CodeOf(const Failure& failure) {
  std::string text = Cut(failure.kind + ": " + failure.message, kMaxTextBytes);
  const std::lock_guard lock(mutex_);
  for (int code = std::max(kFirst, next_ - static_cast<int>(kKept)); code < next_; ++code) {
    if (texts_[static_cast<size_t>(code) % kKept] == text) return code;
  }
  texts_[static_cast<size_t>(next_) % kKept] = std::move(text);
  return next_++;
}

std::string ErrorCodes::TextOf(int code) const {
  const std::lock_guard lock(mutex_);
  if (code >= kFirst && code < next_ && next_ - code <= static_cast<int>(kKept)) {
    return texts_[static_cast<size_t>(code) % kKept];
  }
  return "PassingError: jax_passing no longer knows what error " + std::to_string(code) + " was.";
}

}  // namespace passing::mpi
