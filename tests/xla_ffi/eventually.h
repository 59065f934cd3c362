#ifndef TESTS_XLA_FFI_EVENTUALLY_H_
#define TESTS_XLA_FFI_EVENTUALLY_H_

#include <chrono>
#include <thread>

namespace passing {

// Waits until `condition` holds, for as long as a busy machine may need. Returns whether it does.
template <typename Condition>
bool Eventually(const Condition& condition) {
  for (int waited_ms = 0; waited_ms < 20'000; ++waited_ms) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_EVENTUALLY_H_
