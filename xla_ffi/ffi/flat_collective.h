// Pure in-network aggregation (SwitchML, ATP): each device of this host is a rank of its own at the switch.
#ifndef XLA_FFI_FFI_FLAT_COLLECTIVE_H_
#define XLA_FFI_FFI_FLAT_COLLECTIVE_H_

#include <memory>
#include <vector>

#include "host/sums/sum.h"

namespace passing {

class FlatCollective : public Collective {
 public:
  // One for each local device, in the order of the devices' members.
  explicit FlatCollective(std::vector<std::shared_ptr<Collective>> ranks);

  uint32_t world_size() const override { return ranks_.front()->world_size(); }
  // A sum of one device's buffers on each rank; done when all are, and nothing is told of it before. The sum has as
  // many devices as there are ranks.
  void Start(Sum sum) override;
  void Ready(const SumKey& key, uint64_t elements) override;
  void Fail(const Failure& failure) override;

 private:
  const std::vector<std::shared_ptr<Collective>> ranks_;
};

}  // namespace passing

#endif  // XLA_FFI_FFI_FLAT_COLLECTIVE_H_
