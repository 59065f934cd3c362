// Whose turn it is when several jobs want more of the switch's thread than there is. No clock, no threads.
#ifndef XLA_FFI_SWITCH_FAIR_TURNS_H_
#define XLA_FFI_SWITCH_FAIR_TURNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace passing {

// Start-time fair queueing (Goyal, Vin and Chen, 1996): of those that wait, the one that had least so far goes next.
// Who didn't wait for a while begins where the others are, so that nobody saves up time by being idle. Nobody waits
// longer than all others need for one turn each, and while nobody else waits, one may have everything.
class FairTurns {
 public:
  // `waiting`: their numbers, at least one.
  size_t Next(std::span<const size_t> waiting) {
    size_t next = waiting.front();
    for (const size_t one : waiting) {
      if (had_.size() <= one) had_.resize(one + 1);
      had_[one] = std::max(had_[one], now_);
      if (had_[one] < had_[next]) next = one;
    }
    now_ = had_[next];
    return next;
  }

  // What the turn of the one that was next has cost, in any unit.
  void Charge(size_t one, uint64_t cost) { had_[one] += cost; }

 private:
  std::vector<uint64_t> had_;  // by number
  uint64_t now_ = 0;           // what the one had whose turn it was last
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_FAIR_TURNS_H_
