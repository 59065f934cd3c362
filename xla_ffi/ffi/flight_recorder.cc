#include "ffi/flight_recorder.h"

#include <algorithm>
#include <cstring>

#include "net/clock.h"

namespace passing {
namespace {

// The bytes of `text` that fit, without a part of a character of UTF-8 at the end.
size_t Fitting(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text.size();
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return bytes;
}

}  // namespace

std::string_view NameOf(SumState state) {
  constexpr std::string_view kNames[] = {"started", "completed", "failed"};
  return kNames[static_cast<size_t>(state)];
}

FlightRecorder& FlightRecorder::OfProcess() {
  static auto& recorder = *new FlightRecorder();
  return recorder;
}

void FlightRecorder::BeginSession() {
  const std::lock_guard lock(mutex_);
  first_of_session_ = next_;
}

uint64_t FlightRecorder::Start(const SumKey& key, const SumSpec& spec, uint32_t world_size, int64_t scheduled_us) {
  const int64_t now_us = MonotonicUs();
  const uint64_t elements = spec.elements();  // a loop over the leaves
  const DType dtype = Narrowed(spec.dtype);
  const size_t name_bytes = Fitting(spec.site_name, RecordedSum::kNameBytes);
  const std::lock_guard lock(mutex_);
  RecordedSum& sum = ring_[next_ % kSums];
  sum.number = next_;
  sum.key = key;
  sum.bytes = elements * SizeOf(dtype);
  sum.scheduled_us = scheduled_us == 0 ? now_us : scheduled_us;
  sum.started_us = now_us;
  sum.ended_us = 0;
  sum.elements = elements;
  sum.world_size = world_size;
  sum.dtype = dtype;
  sum.op = spec.op;
  sum.state = SumState::kStarted;
  sum.name_bytes = static_cast<uint8_t>(name_bytes);
  std::memcpy(sum.name.data(), spec.site_name.data(), name_bytes);
  return next_++;
}

void FlightRecorder::End(uint64_t number, const Failure* failure) {
  const int64_t now_us = MonotonicUs();
  const std::lock_guard lock(mutex_);
  RecordedSum& sum = ring_[number % kSums];
  if (sum.number != number || number >= next_) return;
  sum.state = failure == nullptr ? SumState::kCompleted : SumState::kFailed;
  sum.ended_us = now_us;
}

std::vector<RecordedSum> FlightRecorder::Sums() const {
  std::vector<RecordedSum> sums;
  sums.reserve(kSums);  // without the lock, for which sums would wait
  const std::lock_guard lock(mutex_);
  const uint64_t remembered = next_ - std::min<uint64_t>(next_, kSums);
  for (uint64_t number = std::max(remembered, first_of_session_); number < next_; ++number) {
    sums.push_back(ring_[number % kSums]);
  }
  return sums;
}

}  // namespace passing
