#include "host/order/early_sums.h"

#include <utility>

namespace passing {
namespace {

// A message is a row of names: site, execution and step of each sum.
constexpr size_t kNameBytes = 16;

void Put(std::string& out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

uint64_t Take(std::span<const uint8_t>& bytes, size_t count) {
  uint64_t value = 0;
  for (const uint8_t byte : bytes.first(count)) value = value << 8 | byte;
  bytes = bytes.subspan(count);
  return value;
}

}  // namespace

std::string EarlySums::OnIssued(SumPass& sum) {
  if (!sum.spec().early || sum.pass() != 0) return {};
  const SegmentId name = sum.IdOf(0);
  if (rank_.rank == 0) {
    const auto came = came_.find(name);
    if (came == came_.end() || came->second + 1 < rank_.world_size) {
      sums_.Hold(sum);
    } else {
      came_.erase(came);
    }
    return {};
  }
  // Only sums in opposite directions are under way together: nobody has to know of the others.
  std::erase_if(untold_, [this](const SegmentId& each) { return sums_.Find(each) == nullptr; });
  untold_.push_back(name);
  if (sums_.count(Way::kUp) == 0 || sums_.count(Way::kDown) == 0) return {};
  std::string message;
  for (const SegmentId& each : std::exchange(untold_, {})) {
    Put(message, each.site, 8);
    Put(message, each.execution, 4);
    Put(message, each.step, 4);
  }
  return message;
}

bool EarlySums::OnTold(std::span<const uint8_t> message) {
  if (message.empty() || message.size() % kNameBytes != 0) return false;
  while (!message.empty()) {
    SegmentId name{.site = Take(message, 8)};
    name.execution = static_cast<uint32_t>(Take(message, 4));
    name.step = static_cast<uint32_t>(Take(message, 4));
    if (came_.size() >= kMaxKnown) came_.clear();
    SumPass* const sum = sums_.Find(name);
    if (sum != nullptr && !sum->is_held()) continue;  // it was its turn
    if (++came_[name] + 1 < rank_.world_size || sum == nullptr) continue;
    came_.erase(name);
    sums_.Release(*sum);
  }
  return true;
}

void EarlySums::Release() {
  SumPass* const next = sums_.FirstIfHeld();
  if (next == nullptr) return;
  came_.erase(next->IdOf(0));
  sums_.Release(*next);
}

}  // namespace passing
