// Counts how long sums take, by their size, and for how long any of them is under way. No clock.
#ifndef XLA_FFI_HOST_SUMS_SUM_TIMES_H_
#define XLA_FFI_HOST_SUMS_SUM_TIMES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace passing {

class SumTimes {
 public:
  // The largest sum of each class of sizes; the last class has those that are larger still.
  static constexpr std::array<uint64_t, 5> kMaxBytes{1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28};
  // The longest time of each class of times; the last class has those that took longer.
  static constexpr std::array<int64_t, 12> kMaxUs{100,     300,     1'000,     3'000,     10'000,     30'000,
                                                  100'000, 300'000, 1'000'000, 3'000'000, 10'000'000, 30'000'000};

  struct OfSize {
    std::array<uint64_t, kMaxUs.size() + 1> counts{};  // by class of times
    int64_t total_us = 0;
  };
  using BySize = std::array<OfSize, kMaxBytes.size() + 1>;

  void OnStarted(int64_t now_us) {
    if (under_way_++ == 0) busy_since_us_ = now_us;
    latest_us_ = now_us;
  }
  void OnCompleted(uint64_t bytes, int64_t started_us, int64_t now_us) {
    OfSize& of_size = by_size_[ClassOf(kMaxBytes, bytes)];
    ++of_size.counts[ClassOf(kMaxUs, now_us - started_us)];
    of_size.total_us += now_us - started_us;
    latest_us_ = now_us;
    if (--under_way_ == 0) busy_us_ += now_us - busy_since_us_;
  }
  // No sum is under way any more.
  void OnFailed() {
    if (under_way_ > 0) busy_us_ += latest_us_ - busy_since_us_;
    under_way_ = 0;
  }

  const BySize& by_size() const { return by_size_; }
  // Returns for how long at least one sum was under way.
  int64_t busy_us(int64_t now_us) const { return busy_us_ + (under_way_ > 0 ? now_us - busy_since_us_ : 0); }

 private:
  template <typename T, size_t kCount>
  static size_t ClassOf(const std::array<T, kCount>& largest, T value) {
    return static_cast<size_t>(std::lower_bound(largest.begin(), largest.end(), value) - largest.begin());
  }

  BySize by_size_{};
  uint32_t under_way_ = 0;
  int64_t busy_us_ = 0;  // without the present period
  int64_t busy_since_us_ = 0;
  int64_t latest_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_TIMES_H_
