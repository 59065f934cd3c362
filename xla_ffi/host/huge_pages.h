// Large arrays ask the system for huge pages.
#ifndef XLA_FFI_HOST_HUGE_PAGES_H_
#define XLA_FFI_HOST_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace passing {

// XLA's results lie in memory that the system has yet to give, page by page. Small pages take longer than their bytes
// take to be copied: here 1,000 ns/KB, and huge ones 250.
inline void PreferHugePages(const void* data, size_t bytes) {
  constexpr size_t kWorthIt = 4 << 20;
  constexpr uintptr_t kPage = 2 << 20;
  if (bytes < kWorthIt) return;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) & ~(kPage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kPage - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // some systems have none
}

// Returns memory to which nothing is written yet.
template <typename T>
std::unique_ptr<T[]> NewMemory(size_t count) {
  auto memory = std::make_unique_for_overwrite<T[]>(count);
  PreferHugePages(memory.get(), count * sizeof(T));
  return memory;
}

}  // namespace passing

#endif  // XLA_FFI_HOST_HUGE_PAGES_H_
