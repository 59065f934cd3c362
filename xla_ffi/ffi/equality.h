// All devices of all hosts should hold the same bits in arrays that a program takes for equal. Each contributes
// digests, and one sum of maxima shows all hosts alike which arrays differ, and who has others.
#ifndef XLA_FFI_FFI_EQUALITY_H_
#define XLA_FFI_FFI_EQUALITY_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/sums/sum.h"

namespace passing {

// 64 bits of an array's bytes. Arrays that differ by chance have the same with odds of 2^-64; nobody is kept from
// making two that do.
uint64_t DigestOf(const void* data, size_t bytes);

// One call in a program that compares arrays, once in each session.
class Equality {
 public:
  // `leaves`: the names of the arrays. `ranks_max`: as many ranks as a sum may have.
  Equality(std::string site_name, std::vector<std::string> leaves, uint32_t ranks_max)
      : site_name_(std::move(site_name)), leaves_(std::move(leaves)), ranks_max_(ranks_max) {}

  // Two int32 that are each the complement of another two stand for a digest: the maxima of all four are that again if
  // all have the same. There are four of each array, and then four of each rank, for all of its arrays.
  size_t lane_count() const { return 4 * (leaves_.size() + ranks_max_); }
  // Returns what one device of a rank contributes.
  std::vector<int32_t> Lanes(std::span<const uint64_t> digests, uint32_t rank) const;
  // Says why the arrays aren't equal, by the maxima of all devices' lanes: the same on all hosts.
  std::optional<Failure> Difference(std::span<const int32_t> maxima) const;

  // Tells whether the devices of this group have been compared in this session, which has a number from 1 on.
  bool IsDone(int64_t group, uint64_t session) const;
  void Done(int64_t group, uint64_t session);

 private:
  std::string LeavesText(const std::vector<size_t>& which) const;

  const std::string site_name_;
  const std::vector<std::string> leaves_;
  const uint32_t ranks_max_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, uint64_t> done_;  // the last session of each group
};

}  // namespace passing

#endif  // XLA_FFI_FFI_EQUALITY_H_
