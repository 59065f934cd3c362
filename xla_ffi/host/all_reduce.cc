#include "host/all_reduce.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/active_sum.h"
#include "host/order.h"
#include "host/sharding.h"
#include "host/slot_window.h"
#include "host/sums_in_flight.h"

namespace passing {
namespace {

// How long rank 0 waits for the sum that the job's history predicts while another one is ready. Deviating costs a
// message to every host and a drained pipeline, about this long.
constexpr int64_t kDeviateGraceUs = 500;

// Sites whose exponents are remembered; a guess is never needed, so forgetting all of them at once is simplest.
constexpr size_t kMaxGuesses = 4096;

// An order message is sent once it has so many bytes, and goes beyond them by one announcement at most. One moment may
// announce as many segments as there are slots, and the switch takes relayed messages of up to 1 MiB (RELAY_BYTES_MAX
// in control_messages.py).
constexpr size_t kOrderMessageBytes = 1 << 16;

// Names of sites, for messages to people: forgetting all of them at once is simplest.
constexpr size_t kMaxSiteNames = 1 << 14;

// A sum is overtaken by at most this many segments for each of its own, if what overtakes it has as many left: then
// rank 0 deviates, whatever the job's history predicts. At 1 Gbit/s a segment takes 0.8 ms, about what deviating costs.
constexpr uint64_t kPatienceSegments = 4;

// A line of the order's log, and what this rank knows about its chunks.
struct Line {
  Place place;
  ActiveSum* sum = nullptr;          // null until this host issues it, and once the line is done
  std::vector<int32_t> exponents{};  // of its blocks: this host's, then the job's
  uint32_t exponents_awaited = 0;    // chunks
  uint32_t next_chunk = 0;           // to be sent for the first time
  uint32_t chunks_done = 0;
  std::vector<int32_t> guesses{};  // the exponents at which this host sent data, if the segment guesses
  struct EarlyResult {
    uint32_t chunk;
    uint8_t flags;
    std::vector<uint8_t> lanes;
  };
  std::vector<EarlyResult> early_results{};  // of guessed data, until it is known whether the guess was right

  const Segment& segment() const { return sum->plan().segment(place.id.segment); }
};

// An exponent's negative, as a lane. A packet may hold the one number that has none as an int32: so modulo 2^32.
uint32_t Negated(int32_t exponent) { return uint32_t{0} - static_cast<uint32_t>(exponent); }

}  // namespace

class AllReduce::Impl {
 public:
  Impl(const JobConfig& job, std::vector<Driver*> drivers, std::function<void(std::string)> broadcast)
      : job_(job),
        sharding_(static_cast<uint32_t>(job.shards.size()), job.slots_per_shard),
        headroom_bits_(HeadroomBits(job.world_size)),
        drivers_(std::move(drivers)),
        broadcast_(std::move(broadcast)),
        order_(sharding_.window(), job.first_position),
        window_(sharding_) {
    assert(drivers_.size() == job.shards.size());
    assert(job.rank < job.world_size && job.world_size <= kMaxWorldSize);
    assert(job.lanes_per_chunk >= 3 && job.lanes_per_chunk <= wire::kMaxLanes);
    for (const Shard& shard : job.shards) {
      assert(shard.whole_lanes == 0 ||
             (shard.whole_lanes >= job.lanes_per_chunk && shard.whole_lanes <= wire::kMaxLanes));
    }
    window_.Advance(job.first_position);
  }

  void Start(Sum sum, int64_t now_us) {
    ++stats_.sums_started;
    if (failure_) return sum.done(&*failure_);
    Issue(
        std::make_unique<ActiveSum>(std::move(sum), job_.lanes_per_chunk, sharding_.window(), headroom_bits_, now_us));
  }

  void OnPacket(uint32_t shard, std::span<const uint8_t> packet, int64_t now_us);
  std::optional<Failure> OnOrderMessage(std::span<const uint8_t> message);
  void OnTimer(int64_t now_us);
  int64_t next_timer_us() const;
  void Fail(const Failure& failure);
  std::optional<Stall> OldestStall() const;

  bool idle() const { return sums_.empty(); }
  AllReduceStats stats() const {
    AllReduceStats stats = stats_;
    stats.round_trip_us = window_.round_trip_us();
    stats.rto_us = window_.rto_us();
    return stats;
  }

 private:
  bool leads() const { return job_.rank == 0; }

  // Order.
  void Issue(std::unique_ptr<ActiveSum> sum);
  void PlaceIssued(int64_t now_us);
  void Announce();
  bool IsImpatient(const ActiveSum& shortest, const ActiveSum& expected) const;
  void SpeculateAhead();
  void AddLine(const Place& place);
  void Join(Line& line, ActiveSum& sum);
  Line& LineOf(uint64_t index) { return log_[index - log_.front().place.index]; }
  bool DropLinesFrom(uint64_t index);

  // Sending.
  void SendNew(int64_t now_us);
  void SendChunk(const Line& line, uint32_t chunk);

  // Receiving.
  Line& LineAt(uint64_t position);
  uint32_t LanesOf(const Line& line, uint32_t chunk) const;
  wire::Header HeaderOf(const Line& line, uint32_t chunk) const;
  void TakeExponents(Line& line, uint32_t chunk, const uint8_t* lanes);
  void TakeGuessedExponents(Line& line, const uint8_t* lanes);
  void TakeData(Line& line, uint32_t chunk, const uint8_t* lanes, uint8_t flags);
  void Retire();
  void Complete(ActiveSum& sum);

  const JobConfig job_;
  const Sharding sharding_;
  const uint32_t headroom_bits_;
  const std::vector<Driver*> drivers_;  // by shard
  const std::function<void(std::string)> broadcast_;
  Order order_;
  SlotWindow window_;
  // From the first line that isn't done. Predictions fill it as far as the window reaches, which may be thousands of
  // lines: so what has to do with sums that are issued is found without a scan of it.
  std::deque<Line> log_;
  std::unordered_map<SegmentId, uint64_t, SegmentIdHash> not_issued_;  // index of the line; the first, if told twice
  std::set<uint64_t> under_way_;                                       // indices of lines with a sum
  SumsInFlight sums_;
  std::unordered_map<uint64_t, std::string> site_names_;        // as rank 0 announced them
  std::unordered_map<uint64_t, std::vector<int32_t>> guesses_;  // by site: the exponents it had last
  std::string announcement_;
  uint64_t segments_placed_ = 0;  // by rank 0
  int64_t deviate_us_ = 0;        // when rank 0 stops waiting for the predicted sum; 0 if it doesn't wait
  bool dirty_ = false;            // something happened that OnTimer may act on
  std::optional<Failure> failure_;
  AllReduceStats stats_;
};

// ---------------------------------------------------------------- order

void AllReduce::Impl::Issue(std::unique_ptr<ActiveSum> sum) {
  sum->issued_behind_segment = segments_placed_;
  ActiveSum& issued = sums_.Add(std::move(sum));
  dirty_ = true;
  // The segments that have a place already, as rank 0 gives them places in order.
  for (uint32_t segment = 0;; ++segment) {
    const auto found = not_issued_.find(issued.IdOf(segment));
    if (found == not_issued_.end()) return;
    Line& line = LineOf(found->second);
    not_issued_.erase(found);
    Join(line, issued);
  }
}

// Rank 0 gives places to what it issued, as far as the window reaches.
void AllReduce::Impl::PlaceIssued(int64_t now_us) {
  const auto place = [&](ActiveSum& sum) {
    const uint32_t segment = sum.segments_placed;
    AddLine(order_.Append(sum.IdOf(segment), sum.plan().segment(segment).chunk_count(), sum.plan().segment_count(),
                          sum.shape().site_name, announcement_));
    deviate_us_ = 0;
    ++segments_placed_;
    if (announcement_.size() >= kOrderMessageBytes) Announce();
  };
  while (order_.next_position() < window_.end()) {
    ActiveSum* shortest = sums_.ShortestToPlace();
    if (shortest == nullptr) break;
    const auto predicted = order_.Predict();
    if (predicted) {
      ActiveSum* expected = sums_.Find(predicted->id);
      if (expected != nullptr &&
          (expected->segments_left() == 0 || expected->segments_placed != predicted->id.segment)) {
        expected = nullptr;
      }
      if (expected != nullptr && !IsImpatient(*shortest, *expected)) {
        place(*expected);
        continue;
      }
      if (expected == nullptr && shortest->pass() == 0) {
        if (deviate_us_ == 0) deviate_us_ = now_us + kDeviateGraceUs;
        if (now_us < deviate_us_) break;
      }
    }
    place(*shortest);
  }
  if (!announcement_.empty()) Announce();
}

void AllReduce::Impl::Announce() {
  ++stats_.order_messages;
  broadcast_(std::exchange(announcement_, {}));
}

// Has `shortest` waited long enough behind `expected` and others?
bool AllReduce::Impl::IsImpatient(const ActiveSum& shortest, const ActiveSum& expected) const {
  const uint64_t patience = kPatienceSegments * shortest.segments_left();
  return segments_placed_ - shortest.issued_behind_segment >= patience && expected.segments_left() >= patience;
}

void AllReduce::Impl::SpeculateAhead() {
  while (order_.next_position() < window_.end() && order_.Predict()) AddLine(order_.Speculate());
}

void AllReduce::Impl::AddLine(const Place& place) {
  if (log_.empty()) window_.Advance(place.first_position);
  log_.push_back({.place = place});
  if (ActiveSum* sum = sums_.Find(place.id)) {
    Join(log_.back(), *sum);
  } else {
    not_issued_.try_emplace(place.id, place.index);
  }
}

// Connects a line with this host's sum; takes the scales that this host needs.
void AllReduce::Impl::Join(Line& line, ActiveSum& sum) {
  const SegmentId& id = line.place.id;
  // Rank 0 places a sum's segments once each, in order: another line is a wrong guess, or a foul message. The site's
  // hash covers operation, dtype and sizes, so a line that doesn't fit is a hash collision, or foul as well.
  if (id.segment != sum.segments_placed || sum.segments_left() == 0) return;
  const Segment& segment = sum.plan().segment(id.segment);
  if (segment.chunk_count() != line.place.chunk_count) return;
  line.sum = &sum;
  under_way_.insert(line.place.index);
  sums_.CountPlaced(sum);
  line.exponents_awaited = segment.exponent_chunks;
  line.exponents = sum.Exponents(segment);
  if (!segment.guesses()) return;
  line.guesses = line.exponents;  // the least that holds this host's data
  const auto last = guesses_.find(id.site);
  if (last == guesses_.end() || last->second.size() != line.guesses.size()) return;
  for (size_t i = 0; i < line.guesses.size(); ++i) line.guesses[i] = std::max(line.guesses[i], last->second[i]);
}

std::optional<Failure> AllReduce::Impl::OnOrderMessage(std::span<const uint8_t> message) {
  if (failure_) return std::nullopt;
  ++stats_.order_messages;
  dirty_ = true;
  while (!message.empty()) {
    const auto change = leads() ? std::nullopt : order_.Read(message);
    if (!change || !DropLinesFrom(change->keep)) {
      // The log and the order may be half changed: nothing acts on them any more.
      failure_ = {"ProtocolError",
                  "rank 0's order of sums doesn't fit this host's. This is a defect of jax_passing, or the control "
                  "connection carried foreign data. Restart the job; please report it with the logs of all hosts."};
      return failure_;
    }
    for (const Place& place : change->places) AddLine(place);
    if (change->name.empty()) continue;
    if (site_names_.size() >= kMaxSiteNames) site_names_.clear();
    site_names_[change->places.back().id.site] = change->name;
  }
  return std::nullopt;
}

// False if one of them has a result: then rank 0 took part in it, and can't have placed something else there.
bool AllReduce::Impl::DropLinesFrom(uint64_t index) {
  if (log_.empty() || log_.back().place.index < index) return true;
  ++stats_.order_rollbacks;
  uint64_t position = 0;
  for (; !log_.empty() && log_.back().place.index >= index; log_.pop_back()) {
    const Line& line = log_.back();
    if (line.chunks_done > 0) return false;
    if (line.sum != nullptr) {
      sums_.CountVoid(*line.sum);
      under_way_.erase(line.place.index);
    } else if (const auto found = not_issued_.find(line.place.id);
               found != not_issued_.end() && found->second == line.place.index) {
      not_issued_.erase(found);
    }
    position = line.place.first_position;
  }
  window_.Forget(position);
  return true;
}

// ---------------------------------------------------------------- sending

void AllReduce::Impl::OnTimer(int64_t now_us) {
  if (failure_) return;
  dirty_ = false;
  leads() ? PlaceIssued(now_us) : SpeculateAhead();
  while (const auto position = window_.NextResend(now_us)) {
    Line& line = LineAt(*position);
    ++stats_.packets_resent;
    SendChunk(line, static_cast<uint32_t>(*position - line.place.first_position));
  }
  SendNew(now_us);
  for (Driver* driver : drivers_) driver->Flush();
}

int64_t AllReduce::Impl::next_timer_us() const {
  if (failure_) return INT64_MAX;
  if (dirty_) return 0;
  return std::min(window_.next_timer_us(), deviate_us_ == 0 ? INT64_MAX : deviate_us_);
}

void AllReduce::Impl::SendNew(int64_t now_us) {
  uint32_t in_flight_below = 0;
  for (const uint64_t index : under_way_) {
    Line& line = LineOf(index);
    if (line.place.first_position >= window_.end()) break;
    in_flight_below += line.next_chunk - line.chunks_done;
    const Segment& segment = line.segment();
    // All of a segment that guesses lies in the window of every rank that takes part, so all of it can be skipped
    // safely (docs/protocol.md).
    if (segment.guesses() && !window_.CanSend(line.place.end_position() - 1)) return;
    // Data waits until the job's scales are known, or guesses them.
    const uint32_t sendable = line.exponents_awaited == 0 ? segment.chunk_count() : segment.first_chunks();
    while (line.next_chunk < sendable) {
      const uint64_t position = line.place.first_position + line.next_chunk;
      const bool rest_of_guess = segment.guesses() && line.next_chunk > 0;
      const bool has_room = rest_of_guess || window_.HasRoom(in_flight_below);
      if (!window_.CanSend(position) || !has_room) return;  // nor any later one
      window_.OnSent(position, now_us);
      SendChunk(line, line.next_chunk++);
      ++in_flight_below;
    }
  }
}

// That a chunk has; a packet may have more, which hold nothing.
uint32_t AllReduce::Impl::LanesOf(const Line& line, uint32_t chunk) const {
  const SumPlan& plan = line.sum->plan();
  const Segment& segment = line.segment();
  return segment.CarriesExponents(chunk) ? plan.ExponentRange(segment, chunk).count * segment.lanes_per_block()
                                         : plan.LanesOf(plan.DataRange(segment, chunk).count);
}

wire::Header AllReduce::Impl::HeaderOf(const Line& line, uint32_t chunk) const {
  const uint64_t position = line.place.first_position + chunk;
  const bool maxima = line.segment().CarriesExponents(chunk) || line.sum->shape().op == Op::kMax;
  const ShardSlot place = sharding_.At(position);
  const Shard& shard = job_.shards[place.shard];
  const uint32_t lanes = shard.whole_lanes != 0 ? shard.whole_lanes : LanesOf(line, chunk);
  return {.type = wire::PacketType::kContribution,
          .job = shard.job,
          .epoch = shard.epoch,
          .worker = shard.worker,
          .slot = static_cast<uint16_t>(shard.slot_first + place.slot),
          .sequence = static_cast<uint32_t>(position),
          .version = place.version,
          .lane_format = maxima ? wire::LaneFormat::kMaxInt32 : wire::LaneFormat::kSumInt32,
          .element_count = static_cast<uint16_t>(lanes)};
}

void AllReduce::Impl::SendChunk(const Line& line, uint32_t chunk) {
  Driver& driver = *drivers_[sharding_.ShardOf(line.place.first_position + chunk)];
  uint8_t* packet = driver.Reserve();
  uint8_t* lanes = packet + wire::kHeaderBytes;
  wire::Header header = HeaderOf(line, chunk);
  const uint32_t lane_count = LanesOf(line, chunk);
  std::fill_n(lanes + 4 * size_t{lane_count}, 4 * (size_t{header.element_count} - lane_count), uint8_t{0});
  if (line.segment().CarriesExponents(chunk)) {
    const ChunkRange range = line.sum->plan().ExponentRange(line.segment(), chunk);
    const auto store = [&](uint32_t lane) {
      wire::StoreLane(lanes, lane);
      lanes += 4;
    };
    for (uint32_t i = range.first; i < range.first + range.count; ++i) {
      store(static_cast<uint32_t>(line.exponents[i]));
      if (!line.segment().guesses()) continue;
      store(static_cast<uint32_t>(line.guesses[i]));
      store(Negated(line.guesses[i]));
    }
  } else {
    const bool guessed = line.segment().CarriesGuessedData(chunk);
    header.flags =
        line.sum->Encode(line.segment(), chunk, guessed ? line.guesses : line.exponents, headroom_bits_, lanes);
  }
  wire::Encode(header, packet);
  const size_t bytes = wire::kHeaderBytes + 4 * size_t{header.element_count};
  driver.Commit(bytes);
  ++stats_.packets_sent;
  stats_.bytes_sent += bytes;
}

// ---------------------------------------------------------------- receiving

void AllReduce::Impl::OnPacket(uint32_t shard, std::span<const uint8_t> packet, int64_t now_us) {
  ++stats_.packets_received;
  stats_.bytes_received += packet.size();
  wire::Header header;
  const auto drop = [&] { ++stats_.packets_dropped; };
  if (failure_) return drop();
  if (wire::Decode(packet, header) != wire::DecodeError::kNone) return drop();
  const auto position = window_.InFlight(header.sequence);
  if (!position || sharding_.ShardOf(*position) != shard) return drop();
  Line& line = LineAt(*position);
  const uint32_t chunk = static_cast<uint32_t>(*position - line.place.first_position);
  wire::Header expected = HeaderOf(line, chunk);
  expected.type = wire::PacketType::kResult;
  expected.worker = wire::kEveryWorker;
  expected.flags = header.flags;
  if (header != expected) return drop();
  const bool data = !line.segment().CarriesExponents(chunk);
  if (header.flags != 0 && !(data && IsFloat(line.sum->shape().dtype))) return drop();

  window_.OnResult(*position, now_us, /*in_order=*/data && !line.segment().guesses());
  dirty_ = true;
  ++line.chunks_done;
  const uint8_t* lanes = packet.data() + wire::kHeaderBytes;
  if (data && line.exponents_awaited > 0) {
    line.early_results.push_back({chunk, header.flags, {lanes, lanes + 4 * size_t{header.element_count}}});
  } else if (data) {
    TakeData(line, chunk, lanes, header.flags);
  } else if (line.segment().guesses()) {
    TakeGuessedExponents(line, lanes);
  } else {
    TakeExponents(line, chunk, lanes);
  }
  if (line.chunks_done == line.place.chunk_count) {
    line.exponents.clear();
    under_way_.erase(line.place.index);
    ActiveSum& sum = *std::exchange(line.sum, nullptr);
    if (++sum.segments_done == sum.plan().segment_count()) Complete(sum);
  }
  Retire();
}

Line& AllReduce::Impl::LineAt(uint64_t position) {
  auto after = std::upper_bound(log_.begin(), log_.end(), position,
                                [](uint64_t at, const Line& line) { return at < line.place.first_position; });
  assert(after != log_.begin());
  Line& line = *--after;
  assert(position < line.place.end_position());
  return line;
}

void AllReduce::Impl::TakeExponents(Line& line, uint32_t chunk, const uint8_t* lanes) {
  const ChunkRange range = line.sum->plan().ExponentRange(line.segment(), chunk);
  for (uint32_t i = 0; i < range.count; ++i) {
    line.exponents[range.first + i] = static_cast<int32_t>(wire::LoadLane(lanes + 4 * i));
  }
  --line.exponents_awaited;
}

// The guess was right if it was the same on all ranks, as its maximum and minimum tell, and is the exponent of
// the sum. What is decided here follows from the exponent chunk's result alone, so all ranks decide alike.
void AllReduce::Impl::TakeGuessedExponents(Line& line, const uint8_t* lanes) {
  bool right = true;
  for (int32_t& exponent : line.exponents) {
    exponent = static_cast<int32_t>(wire::LoadLane(lanes));
    const auto highest = static_cast<int32_t>(wire::LoadLane(lanes + 4));
    const uint32_t lowest_negated = wire::LoadLane(lanes + 8);
    right = right && highest == exponent && lowest_negated == Negated(exponent);
    lanes += 4 * kGuessLanes;
  }
  line.exponents_awaited = 0;
  if (guesses_.size() >= kMaxGuesses) guesses_.clear();
  guesses_[line.place.id.site] = line.exponents;

  const Segment& segment = line.segment();
  assert(line.next_chunk == segment.first_chunks());  // they were sent together
  for (uint32_t chunk = 0; chunk < segment.chunk_count(); ++chunk) {
    if (segment.CarriesExponents(chunk) || segment.CarriesGuessedData(chunk) == right) continue;
    const uint64_t position = line.place.first_position + chunk;
    if (window_.Done(position)) continue;
    window_.Skip(position);
    ++line.chunks_done;
  }
  if (right) {
    line.next_chunk = segment.chunk_count();
    for (const Line::EarlyResult& result : line.early_results) {
      TakeData(line, result.chunk, result.lanes.data(), result.flags);
    }
  }
  line.early_results.clear();
  ++(right ? stats_.guesses_right : stats_.guesses_wrong);
}

void AllReduce::Impl::TakeData(Line& line, uint32_t chunk, const uint8_t* lanes, uint8_t flags) {
  line.sum->Decode(line.segment(), chunk, line.exponents, headroom_bits_, lanes, flags);
  stats_.flagged_chunks += flags != 0;
}

// Moves the window past the lines and chunks that are done.
void AllReduce::Impl::Retire() {
  uint64_t low = window_.low();
  while (!log_.empty()) {
    const Place& place = log_.front().place;
    low = std::max(low, place.first_position);
    while (low < place.end_position() && window_.Done(low)) window_.Advance(++low);
    if (low < place.end_position()) break;
    order_.Settle(place.index + 1);
    log_.pop_front();
    if (!log_.empty()) window_.Advance(low = log_.front().place.first_position);
  }
}

void AllReduce::Impl::Complete(ActiveSum& sum) {
  std::unique_ptr<ActiveSum> done = sums_.Take(sum);
  if (done->flagged()) return Issue(ActiveSum::SecondPassOf(std::move(done), job_.lanes_per_chunk, sharding_.window()));
  done = ActiveSum::FirstPassOf(std::move(done));
  ++stats_.sums_completed;
  for (uint64_t elements : done->shape().leaf_elements) stats_.tensor_bytes += elements * SizeOf(done->shape().dtype);
  done->Finish(nullptr);
}

// ---------------------------------------------------------------- failures

void AllReduce::Impl::Fail(const Failure& failure) {
  if (!failure_) failure_ = failure;
  log_.clear();
  not_issued_.clear();
  under_way_.clear();
  while (const auto sum = sums_.TakeFirst()) sum->Finish(&*failure_);
}

std::optional<Stall> AllReduce::Impl::OldestStall() const {
  const ActiveSum* oldest = sums_.Oldest();
  if (oldest == nullptr) return std::nullopt;
  Stall stall{.site_name = oldest->shape().site_name, .key = oldest->key(), .since_us = oldest->started_us()};
  // Results come in the order of the log: the first chunk without one is what the sum waits for.
  const auto waiting = std::find_if(log_.begin(), log_.end(), [&](const Line& line) { return line.sum == oldest; });
  stall.waits_for_order = waiting == log_.end();
  if (!stall.waits_for_order) {
    uint64_t position = waiting->place.first_position;
    while (position + 1 < waiting->place.end_position() && window_.Done(position)) ++position;
    const wire::Header header = HeaderOf(*waiting, static_cast<uint32_t>(position - waiting->place.first_position));
    stall.shard = sharding_.ShardOf(position);
    stall.slot = header.slot;
    stall.version = header.version;
    stall.sequence = header.sequence;
  }
  if (!log_.empty() && log_.front().sum == nullptr) {
    const auto name = site_names_.find(log_.front().place.id.site);
    stall.job_is_at = name == site_names_.end() ? "an unnamed sum" : name->second;
  }
  return stall;
}

AllReduce::AllReduce(const JobConfig& job, std::vector<Driver*> drivers, std::function<void(std::string)> broadcast)
    : impl_(std::make_unique<Impl>(job, std::move(drivers), std::move(broadcast))) {}
AllReduce::~AllReduce() = default;

void AllReduce::Start(Sum sum, int64_t now_us) { impl_->Start(std::move(sum), now_us); }
void AllReduce::OnPacket(uint32_t shard, std::span<const uint8_t> packet, int64_t now_us) {
  impl_->OnPacket(shard, packet, now_us);
}
std::optional<Failure> AllReduce::OnOrderMessage(std::span<const uint8_t> message) {
  return impl_->OnOrderMessage(message);
}
void AllReduce::OnTimer(int64_t now_us) { impl_->OnTimer(now_us); }
int64_t AllReduce::next_timer_us() const { return impl_->next_timer_us(); }
void AllReduce::Fail(const Failure& failure) { impl_->Fail(failure); }
bool AllReduce::idle() const { return impl_->idle(); }
std::optional<Stall> AllReduce::OldestStall() const { return impl_->OldestStall(); }
AllReduceStats AllReduce::stats() const { return impl_->stats(); }

}  // namespace passing
