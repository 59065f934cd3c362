// The sum over one host's devices, for a world of one rank.
#ifndef XLA_FFI_FFI_LOCAL_COLLECTIVE_H_
#define XLA_FFI_FFI_LOCAL_COLLECTIVE_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "host/all_reduce.h"
#include "host/sums/sum.h"

namespace passing {

class LocalCollective : public Collective {
 public:
  uint32_t world_size() const override { return 1; }
  // Sums on the calling thread what can be read, as the next one does.
  void Start(Sum sum) override;
  void Ready(const SumKey& key, uint64_t elements) override;
  void Fail(const Failure& failure) override;
  std::optional<Failure> failure() const;
  AllReduceStats stats() const;

 private:
  // Sums the elements from the `begin`th of each device on. Takes note of the sum unless it is over.
  void GoOn(Sum sum, uint64_t begin, uint64_t end);

  struct Waiting {
    Sum sum;
    uint64_t summed = 0;  // elements
  };

  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::vector<Waiting> waiting_;  // for more elements
  AllReduceStats stats_;
};

}  // namespace passing

#endif  // XLA_FFI_FFI_LOCAL_COLLECTIVE_H_
