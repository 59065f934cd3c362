// A call of XLA may come to a sum while others before it in the program are under way; on another host it may come when
// they are done, as XLA has laid its memory over theirs. If rank 0 placed such a sum beside them too soon, it would
// take slots that they need, and the job would stand still. So rank 0 holds an *early* sum (SumSpec::early) back until
// all followers have told it that they came to it.
#ifndef XLA_FFI_HOST_ORDER_EARLY_SUMS_H_
#define XLA_FFI_HOST_ORDER_EARLY_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "host/sums/rank.h"
#include "host/sums/segment_id.h"
#include "host/sums/sum_pass.h"
#include "host/sums/sums_in_flight.h"

namespace passing {

class EarlySums {
 public:
  // Followers are never further ahead of rank 0 than this number of early sums.
  static constexpr size_t kMaxAhead = 1 << 14;

  EarlySums(SumsInFlight& sums, const Rank& rank) : sums_(sums), rank_(rank) {}

  // This sum was issued. Returns what a follower has to tell rank 0, if that isn't empty.
  std::string OnIssued(SumPass& sum);
  // Rank 0: a follower says this. Returns false if it makes no sense.
  bool OnTold(std::span<const uint8_t> message);

 private:
  SumsInFlight& sums_;
  const Rank rank_;
  std::unordered_map<SegmentId, uint32_t, SegmentIdHash> came_;  // rank 0: followers, by sum that isn't released yet
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_EARLY_SUMS_H_
