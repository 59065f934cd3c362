#include "mpi/failures.h"

#include <algorithm>
#include <new>
#include <string_view>

namespace passing::mpi {
namespace {

std::string Cut(std::string text, size_t bytes) {
  if (text.size() <= bytes) return text;
  bytes -= 3;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;  // no half of a character
  text.resize(bytes);
  return text + "...";
}

// Our texts advise programs that call `init`. One whose collectives JAX calls can't begin them anew: its communicators
// belong to the session that has failed.
std::string AdviseFor(std::string text) {
  for (const auto& [old_advice, advice] : {std::pair{"call jax_passing.init again", "start the program again"},
                                           std::pair{"Call jax_passing.init again", "Start the program again"}}) {
    const std::string_view old(old_advice);
    for (size_t at = 0; (at = text.find(old, at)) != std::string::npos;) text.replace(at, old.size(), advice);
  }
  return text;
}

}  // namespace

Failure CurrentFailure(const std::string& what) {
  try {
    throw;
  } catch (const Failed& failed) {
    return failed.failure();
  } catch (const std::bad_alloc&) {
    return {"PassingError",
            what + " found too little memory on this host. Try smaller arrays, or fewer devices a host."};
  } catch (const std::exception& error) {
    return {"PassingError", what + ": " + error.what()};
  }
}

int ErrorCodes::CodeOf(const Failure& failure) {
  std::string text = Cut(AdviseFor(failure.kind + ": " + failure.message), kMaxTextBytes);
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
