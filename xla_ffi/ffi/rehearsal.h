// The sums of a host that comes to a job which runs without it, while it compiles its programs.
#ifndef XLA_FFI_FFI_REHEARSAL_H_
#define XLA_FFI_FFI_REHEARSAL_H_

#include <cstdint>
#include <functional>

#include "ffi/local_collective.h"
#include "host/sums/sum.h"
#include "net/clock.h"

namespace passing {

// Sums go over this host's devices alone, but programs hear of as many hosts as the job will have: so they compile, and
// run, what they will run in the job. The results are of no use. It ends by itself when everything seems to be
// compiled: sums fail from then on.
class Rehearsal : public LocalCollective {
 public:
  // A program runs again, and nothing was compiled for so long: a training loop has gone round. Its first executions
  // may follow each other faster than the next program is traced, as those that broadcast one array each.
  static constexpr int64_t kSettledUs = 1'000'000;
  // One execution goes on for ever, as where all steps are a loop within one program.
  static constexpr int64_t kQuietUs = 60'000'000;
  // It compiles ever new programs.
  static constexpr int64_t kLongestUs = 3'600'000'000;

  // `over`: what sums fail with at its end.
  Rehearsal(uint32_t world_size, Failure over, std::function<int64_t()> now_us = MonotonicUs);

  uint32_t world_size() const override { return world_size_; }
  void Start(Sum sum) override;

  // This process has compiled a program. May be called at any time, from any thread.
  static void NoteCompilation(int64_t now_us);

 private:
  const uint32_t world_size_;
  const Failure over_;
  const std::function<int64_t()> now_us_;
  const int64_t began_us_;
};

}  // namespace passing

#endif  // XLA_FFI_FFI_REHEARSAL_H_
