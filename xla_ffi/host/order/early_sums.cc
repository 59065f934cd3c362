#include "host/order/early_sums.h"

#include "host/order/message.h"

namespace passing {
namespace {

// A message is a row of names: site, execution and step of each sum.
constexpr size_t kNameBytes = 16;

}  // namespace

std::string EarlySums::OnIssued(SumPass& sum) {
  if (!sum.spec().early || sum.pass() != 0) return {};
  const SegmentId name = sum.IdOf(0);
  std::string message;
  if (rank_.rank > 0) {
    Put(message, name.site, 8);
    Put(message, name.execution, 4);
    Put(message, name.step, 4);
  } else if (came_[name] + 1 < rank_.world_size) {
    sums_.Hold(sum);
  } else {
    came_.erase(name);
  }
  return message;
}

bool EarlySums::OnTold(std::span<const uint8_t> message) {
  if (message.empty() || message.size() % kNameBytes != 0) return false;
  Reader reader(message);
  while (!reader.rest().empty()) {
    SegmentId name{.site = reader.Take(8)};
    name.execution = static_cast<uint32_t>(reader.Take(4));
    name.step = static_cast<uint32_t>(reader.Take(4));
    if (++came_[name] >= rank_.world_size || came_.size() > kMaxAhead) return false;
    SumPass* const sum = sums_.Find(name);
    if (sum == nullptr || came_[name] + 1 < rank_.world_size) continue;
    came_.erase(name);
    sums_.Release(*sum);
  }
  return true;
}

}  // namespace passing
