#include "ffi/rehearsal.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace passing {
namespace {

std::atomic<int64_t> last_compilation_us = 0;

}  // namespace

Rehearsal::Rehearsal(uint32_t world_size, Failure over, std::function<int64_t()> now_us)
    : world_size_(world_size), over_(std::move(over)), now_us_(std::move(now_us)), began_us_(now_us_()) {}

void Rehearsal::NoteCompilation(int64_t now_us) { last_compilation_us = now_us; }

void Rehearsal::Start(Sum sum) {
  const int64_t now_us = now_us_();
  const int64_t quiet_us = now_us - std::max(began_us_, last_compilation_us.load());
  const bool is_repeated = sum.key.execution > 0;
  if (quiet_us >= (is_repeated ? kSettledUs : kQuietUs) || now_us - began_us_ >= kLongestUs) Fail(over_);
  LocalCollective::Start(std::move(sum));
}

}  // namespace passing
