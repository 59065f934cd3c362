// A follower ends up with rank 0's order, whatever that is and however far it speculates; and it survives order
// messages that make no sense.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "host/order/order.h"

namespace passing {
namespace {

constexpr uint32_t kWindow = 16;

std::span<const uint8_t> Span(const std::string& message) {
  return {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
}

class Target {
 public:
  explicit Target(size_t max_contexts) : leader_(kWindow, 0, max_contexts), follower_(kWindow, 0, max_contexts) {}

  void Append(Operations& input) {
    const uint8_t which = input.Byte();
    SegmentId& id = ids_[which % 4];
    const uint8_t what = which / 4 % 8;
    if (what == 0) {
      ++id.execution, id.step = 0, id.segment = 0;
    } else if (what < 4) {
      ++id.segment;
    } else if (what < 6) {
      ++id.step, id.segment = 0;
    } else if (what == 6) {
      id = {.site = id.site, .execution = input.Number32(), .step = input.Number32(), .segment = input.Number32()};
    }
    id.pass = which >= 248 ? 1 : 0;
    const uint8_t size = input.Byte();
    const uint32_t chunk_count = size < 250 ? 1 + size % 8 : 0xFFFFFFFF - size;
    const std::string name(input.Below(8), 'a');
    const uint32_t segment_count = size < 240 ? 1 + size / 8 % 8 : 0xFFFFFFFF;
    const bool takes_turns = name.size() >= 6;
    truth_.push_back(leader_.Append(id, chunk_count, segment_count, name, pending_, takes_turns));
  }

  void Speculate() {
    if (!follower_.Predict() || follower_.next_position() >= certain_position() + kWindow) return;
    log_.push_back(follower_.Speculate());
  }

  // All that rank 0 has announced.
  void Deliver() {
    if (pending_.empty()) return;
    delivered_ = std::exchange(pending_, {});
    for (auto rest = Span(delivered_); !rest.empty();) {
      const auto change = follower_.Read(rest);
      EXPECT_ALWAYS(change);
      Take(*change);
    }
    // Once more it would void what is certain.
    Order copy = follower_;
    auto rest = Span(delivered_);
    EXPECT_ALWAYS(!copy.Read(rest));
  }

  // Lines that have all results: rank 0 took part in them.
  void Settle(Operations& input) {
    const size_t upto = input.Below(64);
    size_t common = 0;
    while (common < log_.size() && common < truth_.size() && common < upto && log_[common].id == truth_[common].id &&
           log_[common].first_position == truth_[common].first_position) {
      ++common;
    }
    follower_.Settle(common);
    leader_.Settle(common);
  }

  // To a copy of the follower, as a job ends with what makes no sense. It begins as what rank 0 has announced, if so.
  void DeliverNonsense(Operations& input, bool begins_well) {
    std::string message = !begins_well ? "" : pending_.empty() ? delivered_ : pending_;
    if (!message.empty()) {
      for (uint32_t changes = 1 + input.Below(3); changes > 0; --changes) {
        const uint8_t at = input.Byte();
        message[at < 64 ? 7 : at % message.size()] = static_cast<char>(input.Byte());  // 7: the index of its entry
      }
    }
    const auto more = input.Bytes(input.Below(128));
    message.append(more.begin(), more.end());
    Order copy = follower_;
    for (auto rest = Span(message); !rest.empty();) {
      const size_t bytes = rest.size();
      const auto change = copy.Read(rest);
      if (!change) break;
      EXPECT_ALWAYS(rest.size() < bytes);
      EXPECT_ALWAYS(!change->entries.empty() && change->entries.front().index <= change->keep);
      for (size_t i = 1; i < change->entries.size(); ++i) {
        EXPECT_ALWAYS(change->entries[i].index == change->entries[i - 1].index + 1);
        EXPECT_ALWAYS(change->entries[i].first_position >= change->entries[i - 1].end_position());
      }
      EXPECT_ALWAYS(copy.next_position() == change->entries.back().end_position());
    }
    copy.Predict();
  }

  void Finish() {
    Deliver();
    while (log_.size() < truth_.size()) {
      EXPECT_ALWAYS(follower_.Predict());
      log_.push_back(follower_.Speculate());
    }
    for (size_t i = 0; i < truth_.size(); ++i) {
      EXPECT_ALWAYS(log_[i].id == truth_[i].id && log_[i].chunk_count == truth_[i].chunk_count);
      EXPECT_ALWAYS(log_[i].index == i && log_[i].first_position == truth_[i].first_position);
      EXPECT_ALWAYS(i == 0 || log_[i].first_position >= log_[i - 1].end_position());
    }
  }

 private:
  uint64_t certain_position() const { return certain_ == 0 ? 0 : log_[certain_ - 1].end_position(); }

  void Take(const Order::Change& change) {
    EXPECT_ALWAYS(!change.entries.empty());
    while (log_.size() > change.entries.front().index) log_.pop_back();
    EXPECT_ALWAYS(log_.size() == change.entries.front().index);
    log_.insert(log_.end(), change.entries.begin(), change.entries.end());
    certain_ = log_.size();
  }

  Order leader_;
  Order follower_;
  std::string pending_;    // order messages
  std::string delivered_;  // the last of them
  std::vector<LogEntry> truth_;
  std::vector<LogEntry> log_;
  size_t certain_ = 0;  // entries of the log before this one were announced
  SegmentId ids_[4] = {{.site = 1}, {.site = 2}, {.site = 3}, {.site = 4}};
};

}  // namespace
}  // namespace passing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  passing::Operations input(data, size);
  const uint8_t contexts = input.Byte();  // the job forgets its history now and then
  passing::Target target(contexts % 2 == 0 ? passing::Order::kMaxContexts : 1 + contexts / 2 % 8);
  while (!input.empty()) {
    const uint32_t operation = input.Below(16);
    if (operation < 7) {
      target.Append(input);
    } else if (operation < 11) {
      target.Speculate();
    } else if (operation == 11) {
      target.Settle(input);
    } else if (operation < 14) {
      target.Deliver();
    } else {
      target.DeliverNonsense(input, /*begins_well=*/operation == 14);
    }
  }
  target.Finish();
  return 0;
}
