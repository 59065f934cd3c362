// Rank 0 decides for all ranks which of its sums comes next in the job's order. No I/O, no clock.
#ifndef XLA_FFI_HOST_ORDER_LEADER_H_
#define XLA_FFI_HOST_ORDER_LEADER_H_

#include <cstdint>

#include "host/order/order.h"
#include "host/sums/sum_pass.h"
#include "host/sums/sums_in_flight.h"

namespace passing {

class Leader {
 public:
  // The sum whose next segment enters the log now; null if there is none, or if it is better to wait.
  SumPass* Next(const Order& order, const SumsInFlight& sums, int64_t now_us);
  // Does that sum take turns from now on with the one that was placed last?
  static bool TakesTurns(const Order& order, const SumsInFlight& sums, const SumPass& next);
  // There is no room for a segment, so it waits for none.
  void StopWaiting() { deviate_us_ = INT64_MAX; }
  // When to call Next again although nothing has happened; INT64_MAX if the leader doesn't wait.
  int64_t next_timer_us() const { return deviate_us_; }

 private:
  SumPass* Choose(const Order& order, const SumsInFlight& sums, int64_t now_us);

  int64_t deviate_us_ = INT64_MAX;  // when it stops waiting for the predicted sum
  uint32_t waits_ = 0;              // for each of the last ones it waited, while another was ready
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_LEADER_H_
