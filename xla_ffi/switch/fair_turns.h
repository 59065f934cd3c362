// Decides whose turn it is when several jobs want more of the switch's thread than there is. No clock, no threads.
#ifndef XLA_FFI_SWITCH_FAIR_TURNS_H_
#define XLA_FFI_SWITCH_FAIR_TURNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace passing {

// Start-time fair queueing (Goyal, Vin and Chen, 1996): of those that wait, the one that has had least goes next. One
// that was idle for a while starts level with the others, so idleness saves up no time. Nobody waits longer than the
// others need for one turn each, and while nobody else waits, one may have everything.
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

  // Charges the one that was next for its turn, in any unit.
  void Charge(size_t one, uint64_t cost) { had_[one] += cost; }

 private:
  std::vector<uint64_t> had_;  // by number
  uint64_t now_ = 0;           // what the last one had when its turn began
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_FAIR_TURNS_H_
