// A call of XLA may come to a sum while those before it in the program are under way; on another host it may come when
// they are done, as XLA has laid its memory over theirs. If rank 0 placed such a sum beside them too soon, it would
// take slots that they need, and the job would stand still. So rank 0 holds an *early* sum back (SumSpec::early) until
// the followers have said that they came to it, too, or all that were issued before it are done.
#ifndef XLA_FFI_HOST_ORDER_EARLY_SUMS_H_
#define XLA_FFI_HOST_ORDER_EARLY_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/sums/rank.h"
#include "host/sums/segment_id.h"
#include "host/sums/sum_pass.h"
#include "host/sums/sums_in_flight.h"

namespace passing {

class EarlySums {
 public:
  // Beyond this number of sums that followers told of, all are forgotten: these wait until those before them are done.
  static constexpr size_t kMaxKnown = 1 << 14;

  EarlySums(SumsInFlight& sums, const Rank& rank) : sums_(sums), rank_(rank) {}

  // This sum was issued. Returns what a follower has to tell rank 0, if that isn't empty.
  std::string OnIssued(SumPass& sum);

  // Rank 0: a follower says this. Returns false if it makes no sense.
  bool OnTold(std::span<const uint8_t> message);
  // Rank 0: lets the first sum go, if it is held back.
  void Release();

 private:
  SumsInFlight& sums_;
  const Rank rank_;
  std::unordered_map<SegmentId, uint32_t, SegmentIdHash> came_;  // followers, by sum; at rank 0
  std::vector<SegmentId> untold_;                                // at a follower
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_EARLY_SUMS_H_
