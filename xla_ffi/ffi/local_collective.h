// The sum over one host's devices, for a world of one rank.
#ifndef XLA_FFI_FFI_LOCAL_COLLECTIVE_H_
#define XLA_FFI_FFI_LOCAL_COLLECTIVE_H_

#include <mutex>
#include <optional>

#include "host/all_reduce.h"
#include "host/sum.h"

namespace passing {

class LocalCollective : public Collective {
 public:
  uint32_t world_size() const override { return 1; }
  // Sums on the calling thread.
  void Start(Sum sum) override;

  // Fails all later sums. The first failure wins.
  void Fail(const Failure& failure);
  std::optional<Failure> failure() const;
  AllReduceStats stats() const;

 private:
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  AllReduceStats stats_;
};

}  // namespace passing

#endif  // XLA_FFI_FFI_LOCAL_COLLECTIVE_H_
