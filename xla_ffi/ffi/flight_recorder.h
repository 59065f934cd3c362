// The recorder remembers the last sums of this process, and how far each has come, for flight records.
#ifndef XLA_FFI_FFI_FLIGHT_RECORDER_H_
#define XLA_FFI_FFI_FLIGHT_RECORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "host/numbers/dtype.h"
#include "host/sums/sum.h"

namespace passing {

enum class SumState : uint8_t { kStarted, kCompleted, kFailed };

// PyTorch's flight recorder has the same words.
std::string_view NameOf(SumState state);

struct RecordedSum {
  static constexpr size_t kNameBytes = 136;  // the source location stands first

  uint64_t number = 0;  // among the sums of this process
  SumKey key;
  uint64_t bytes = 0;        // of one device's elements
  int64_t scheduled_us = 0;  // when the first device of this host came, by the clock of net/clock.h
  int64_t started_us = 0;    // when all had
  int64_t ended_us = 0;      // 0: it hasn't
  uint64_t elements = 0;
  uint32_t world_size = 0;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  SumState state = SumState::kStarted;
  uint8_t name_bytes = 0;
  std::array<char, kNameBytes> name{};  // of the site, for people; a longer one is cut

  std::string_view site_name() const { return {name.data(), name_bytes}; }
};

// A ring, in which a new sum takes the oldest one's cell. It takes its memory when it is made, and no more. May be used
// from any thread: sums start on XLA's threads and end on a transport's. A sum costs two short turns with the lock.
class FlightRecorder {
 public:
  static constexpr size_t kSums = 4096;

  FlightRecorder() : ring_(kSums) {}
  // The process's own, of all its sessions; never destroyed, as a sum may outlive everything.
  static FlightRecorder& OfProcess();

  // A session begins: what is remembered of an earlier one isn't told any more, as its sums had the same keys.
  void BeginSession();
  // Notes a sum that starts now. Returns the number by which it ends. `scheduled_us`: 0 if nobody knows.
  uint64_t Start(const SumKey& key, const SumSpec& spec, uint32_t world_size, int64_t scheduled_us = 0);
  // It has no effect once another sum has the cell.
  void End(uint64_t number, const Failure* failure);
  // The sums of the last session that are remembered, the oldest first.
  std::vector<RecordedSum> Sums() const;

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedSum> ring_;  // a sum's cell is its number modulo kSums
  uint64_t next_ = 0;
  uint64_t first_of_session_ = 0;
};

static_assert(sizeof(RecordedSum) * FlightRecorder::kSums <= 1 << 20);

}  // namespace passing

#endif  // XLA_FFI_FFI_FLIGHT_RECORDER_H_
