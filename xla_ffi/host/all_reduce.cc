#include "host/all_reduce.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "host/sums/sum_passes.h"

namespace passing {
namespace {

// An order message is sent once it has this many bytes, and exceeds them by one announcement at most. The switch relays
// messages of up to 1 MiB (RELAY_BYTES_MAX in control_messages.py).
constexpr size_t kOrderMessageBytes = 1 << 16;

// Names of sites are kept for messages to people. Beyond this many, all of them are forgotten, which is simplest.
constexpr size_t kMaxSiteNames = 1 << 14;

// After this many wrong results of one chunk, the switch is taken to have no other.
constexpr uint32_t kMaxWrongResults = 8;
constexpr uint64_t kMaxWrongResultsInAll = 64;  // of an epoch: whoever guesses has so many tries

}  // namespace

AllReduce::AllReduce(const JobConfig& job, std::vector<Driver*> drivers, std::function<void(std::string)> relay)
    : leads_(job.rank == 0),
      packets_(job),
      drivers_(std::move(drivers)),
      relay_(std::move(relay)),
      order_(packets_.sharding().window(), job.first_position),
      log_(last_exponents_, packets_.rank()),
      early_sums_(log_.sums(), packets_.rank()),
      window_(packets_.sharding(), job.ranks_at_port, job.lanes_per_chunk),
      checks_nans_(job.check_nans) {
  assert(drivers_.size() == job.shards.size());
  window_.Advance(job.first_position);
}

void AllReduce::Start(Sum sum, int64_t now_us) {
  ++stats_.sums_started;
  if (failure_) return sum.done(&*failure_);
  times_.OnStarted(now_us);
  auto pass = ElementPass::Of(std::move(sum), packets_.limits(), packets_.rank(), now_us);
  if (pass->plan().segment_count() == 0) return Complete(std::move(pass), now_us);  // no segment is ours
  Issue(std::move(pass));
}

void AllReduce::OnReady(const SumKey& key, uint64_t elements) {
  if (failure_) return;
  if (log_.OnReady({.site = key.site, .execution = key.execution, .step = key.step}, elements)) dirty_ = true;
}

// ---------------------------------------------------------------- order

void AllReduce::Issue(std::unique_ptr<SumPass> sum) {
  dirty_ = true;
  Relay(early_sums_.OnIssued(log_.Issue(std::move(sum))));
}

// Rank 0 appends its sums' segments to the order.
void AllReduce::PlaceIssued(int64_t now_us) {
  while (window_.MayPlace(order_.next_position())) {
    const SumPass* sum = leader_.Next(order_, log_.sums(), now_us);
    if (sum == nullptr) return Relay(std::exchange(announcement_, {}));
    const uint32_t segment = sum->next_segment();
    AddEntry(order_.Append(sum->IdOf(segment), sum->plan().segment(segment).chunk_count(), sum->plan().segment_count(),
                           sum->spec().site_name, announcement_, Leader::TakesTurns(order_, log_.sums(), *sum)));
    if (announcement_.size() >= kOrderMessageBytes) Relay(std::exchange(announcement_, {}));
  }
  leader_.StopWaiting();
  Relay(std::exchange(announcement_, {}));
}

// The other ranks append what the job's history predicts.
void AllReduce::SpeculateAhead() {
  while (order_.next_position() < window_.end() && order_.Predict()) AddEntry(order_.Speculate());
}

void AllReduce::AddEntry(const LogEntry& entry) {
  if (log_.empty()) window_.Advance(entry.first_position);
  if (!log_.empty()) window_.OnGap(log_.back().entry.end_position(), entry.first_position);
  log_.Append(entry, packets_.DigestOf(entry));
}

std::optional<Failure> AllReduce::OnOrderMessage(std::span<const uint8_t> message) {
  if (failure_) return std::nullopt;
  ++stats_.order_messages;
  dirty_ = true;
  if (leads_ && early_sums_.OnTold(message)) return std::nullopt;
  while (!message.empty()) {
    const auto change = leads_ ? std::nullopt : order_.Read(message);
    if (!change || !DropEntriesFrom(change->keep)) {
      // The log and the order may be half changed: nothing acts on them any more.
      failure_ = {
          "ProtocolError",
          "what another host says of the order of sums doesn't fit this host's. This is a defect of jax_passing, "
          "or the control connection carried foreign data. Restart the job; please report it with all logs."};
      return failure_;
    }
    for (const LogEntry& entry : change->entries) AddEntry(entry);
    if (change->name.empty()) continue;
    if (site_names_.size() >= kMaxSiteNames) site_names_.clear();
    site_names_[change->entries.back().id.site] = change->name;
  }
  return std::nullopt;
}

// Returns false if rank 0 can't have meant it.
bool AllReduce::DropEntriesFrom(uint64_t index) {
  if (!log_.Reaches(index)) return true;
  ++stats_.order_rollbacks;
  const std::optional<uint64_t> position = log_.DropFrom(index);
  if (position) window_.Forget(*position);
  return position.has_value();
}

// ---------------------------------------------------------------- sending

void AllReduce::OnTimer(int64_t now_us) {
  if (failure_) return;
  dirty_ = false;
  leads_ ? PlaceIssued(now_us) : SpeculateAhead();
  ResendOverdue(now_us);
  SendNew(now_us);
  for (Driver* driver : drivers_) driver->Flush();
}

void AllReduce::ResendOverdue(int64_t now_us) {
  while (const auto position = window_.NextResend(now_us)) {
    const PlacedSegment& placed = log_.At(*position);
    ++stats_.packets_resent;
    SendChunk(placed, placed.ChunkAt(*position));
  }
}

void AllReduce::SendNew(int64_t now_us) {
  uint64_t counted = window_.low();
  SlotWindow::Count in_flight_below;
  bool ends_segment = false;
  bool data_waits = false;  // of an earlier large sum: so does that of all later ones
  for (auto entry = log_.to_send().begin(); entry != log_.to_send().end();) {
    PlacedSegment& placed = log_.WithIndex(*entry);
    if (placed.entry.first_position >= window_.end()) break;
    // Later segments wait as well. The wait is short, and for no other host: a sum starts when its first elements come,
    // and the GPU copies one sum after the other.
    if (!log_.Prepare(placed)) return;
    const Segment& segment = placed.segment();
    // A segment that guesses lies as a whole in every rank's window, so that its chunks can be skipped (protocol.md).
    if (segment.guesses() && !window_.CanSend(placed.entry.end_position() - 1)) return;
    // Data waits for the job's exponents, or guesses them, and so does all later data: results come in the order of
    // positions only if all ranks send in it, and would be taken for lost. Small sums go ahead of it, and exponents
    // behind a segment's last data: elsewhere they, as shorter packets, would cut super-packets short.
    const uint32_t sendable = placed.exponents.known() ? segment.chunk_count() : segment.first_chunks();
    const bool goes_ahead = placed.goes_ahead();
    if (goes_ahead && data_waits) window_.OnSmallSum(now_us);
    bool has_room = true;
    for (; placed.next_chunk < sendable; ++placed.next_chunk) {
      const uint64_t position = placed.PositionOf(placed.next_chunk);
      in_flight_below += window_.InFlightBetween(counted, position);
      counted = position;
      const bool is_data = placed.next_chunk >= segment.exponent_chunks;
      has_room = goes_ahead ? placed.next_chunk > 0 || window_.HasRoom(in_flight_below, /*goes_ahead=*/true)
                            : !(is_data && data_waits) && window_.HasRoom(in_flight_below, !is_data && ends_segment);
      if (!window_.CanSend(position)) return;  // nor any later one
      if (!has_room) break;
      window_.OnSent(position, now_us, SendChunk(placed, placed.next_chunk));
    }
    ends_segment = ends_segment || (!goes_ahead && placed.next_chunk == segment.chunk_count());
    const bool has_data_left = !goes_ahead && placed.next_chunk < segment.chunk_count();
    data_waits = data_waits || has_data_left;
    entry = has_room && !has_data_left ? log_.OnSent(entry) : std::next(entry);
  }
}

ChunkLanes AllReduce::SendChunk(const PlacedSegment& placed, uint32_t index) {
  const PlacedChunk chunk = packets_.At(placed, index);
  Driver& driver = *drivers_[chunk.at.shard];
  const ChunkPackets::Written written = packets_.Write(chunk, driver.Reserve());
  if (checks_nans_) CheckOwn(placed, index, written.flags);
  driver.Commit(written.bytes);
  ++stats_.packets_sent;
  stats_.bytes_sent += written.bytes;
  return {.up = written.has_lanes, .down = written.asks_for_lanes};
}

// Elements that aren't finite have set flags, but for those whose bits are moved.
void AllReduce::CheckOwn(const PlacedSegment& placed, uint32_t chunk, uint8_t flags) {
  const Segment& segment = placed.segment();
  if (segment.CarriesExponents(chunk)) return;
  const std::span<const int32_t> exponents = placed.exponents.Sending(segment, chunk);
  if (flags == 0 && !HaveMovedBits(exponents)) return;
  first_non_finite_ = placed.sum->FirstNonFinite(segment, chunk, exponents, /*of_results=*/false);
  if (first_non_finite_) checks_nans_ = false;
}

// ---------------------------------------------------------------- receiving

bool AllReduce::OnPacket(uint32_t shard, std::span<const uint8_t> packet, int64_t now_us) {
  ++stats_.packets_received;
  stats_.bytes_received += packet.size();
  wire::Header header;
  const auto drop = [&] {
    ++stats_.packets_dropped;
    return false;
  };
  if (failure_ || wire::Decode(packet, header) != wire::DecodeError::kNone) return drop();
  const auto position = window_.InFlight(header.sequence);
  if (!position) return drop();
  PlacedSegment& placed = log_.At(*position);
  const PlacedChunk chunk = packets_.At(placed, placed.ChunkAt(*position));
  if (chunk.at.shard != shard || !packets_.IsResult(header, chunk)) return drop();
  if (!packets_.IsGenuine(packet, chunk)) {
    ++stats_.packets_forged;
    return drop();
  }

  const bool data = !chunk.carries_exponents, known = placed.exponents.known();
  // Whoever keeps the exponents back and guesses has one try, as nobody can tell yet whether it counts.
  if (placed.unfit.contains(chunk.index) && !known) return drop();
  uint8_t unmasked[4 * wire::kMaxLanes], scratch[4 * wire::kMaxLanes];
  auto [lanes, flags] = packets_.Unmasked(chunk, header, packet.data() + wire::kHeaderBytes, unmasked);
  const bool is_sum = packets_.IsSum(chunk, flags, lanes);
  lanes = data ? packets_.Lanes(chunk, header, lanes, scratch) : packets_.Maxima(chunk, lanes, scratch);
  if (lanes == nullptr || !is_sum) {
    // Before the exponents are known, another rank may have guessed others: then nobody needs this result.
    if (!known && data) placed.unfit.insert(chunk.index);
    if (known || !data) OnWrongSum(placed, *position);
    return drop();
  }
  wrong_results_.erase(*position);
  last_result_ = window_.OwnResultOf(*position, /*is_header=*/(header.flags & wire::kFlagNoResult) != 0);
  window_.OnResult(*position, now_us, /*in_order=*/data && !placed.goes_ahead());
  dirty_ = true;
  ++placed.chunks_done;
  if (!data) {
    TakeExponents(placed, chunk.index, lanes);
  } else if (known) {
    TakeData(placed, chunk.index, lanes, flags);
  } else {
    placed.exponents.Keep(chunk.index, flags, {lanes, 4 * size_t{header.element_count}});
  }
  if (placed.chunks_done == placed.entry.chunk_count) {
    if (auto sum = log_.Finish(placed)) Complete(std::move(sum), now_us);
  }
  Retire();
  return true;
}

void AllReduce::TakeExponents(PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes) {
  const Segment& segment = placed.segment();
  packets_.TakeExponents(placed, chunk, lanes);
  if (!segment.guesses()) return;
  log_.OnSendable(placed);
  last_exponents_.Remember(placed.entry.id, placed.exponents.of_job());
  assert(placed.next_chunk == segment.first_chunks());  // they were sent together
  for (uint32_t other = 0; other < segment.chunk_count(); ++other) {
    const uint64_t position = placed.PositionOf(other);
    if (placed.exponents.Needs(segment, other) || window_.Done(position)) continue;
    window_.Skip(position);
    ++placed.chunks_done;
  }
  const bool right = placed.exponents.guessed_right();
  if (right) placed.next_chunk = segment.chunk_count();
  if (!right) placed.unfit.clear();
  for (const uint32_t each : placed.unfit) OnWrongSum(placed, placed.PositionOf(each));
  for (const auto& kept : placed.exponents.TakeKept()) TakeData(placed, kept.chunk, kept.lanes.data(), kept.flags);
  ++(right ? stats_.guesses_right : stats_.guesses_wrong);
}

void AllReduce::TakeData(const PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes, uint8_t flags) {
  const std::span<const int32_t> exponents = placed.exponents.of_data();
  placed.sum->Decode(placed.segment(), chunk, exponents, lanes, flags);
  stats_.flagged_chunks += flags != 0;
  if (!checks_nans_) return;
  checks_nans_ = flags == 0 && !(HaveMovedBits(exponents) &&
                                 placed.sum->FirstNonFinite(placed.segment(), chunk, exponents, /*of_results=*/true));
}

// If somebody sent it in the switch's name, the switch's own result comes as well, sooner or later. But if the switch
// itself holds a wrong sum, it answers with that sum again and again.
void AllReduce::OnWrongSum(const PlacedSegment& placed, uint64_t position) {
  ++stats_.sums_wrong;
  if (++wrong_results_[position] <= kMaxWrongResults && stats_.sums_wrong <= kMaxWrongResultsInAll) return;
  failure_ = {
      "WrongSumError",
      placed.sum->spec().site_name +
          ": a sum that came back isn't that of what all ranks sent. Somebody sends packets in a rank's name, or "
          "the switch adds wrongly: look at its counters, and test it by `jax-passing conformance`. Nothing "
          "wrong was used; start again from the last step."};
}

// Moves the window past the segments and chunks that are done.
void AllReduce::Retire() {
  uint64_t low = window_.low();
  while (!log_.empty()) {
    const LogEntry& entry = log_.front().entry;
    low = std::max(low, entry.first_position);
    while (low < entry.end_position() && window_.Done(low)) window_.Advance(++low);
    if (low < entry.end_position()) break;
    order_.Settle(entry.index + 1);
    log_.PopFront();
    if (!log_.empty()) window_.Advance(low = log_.front().entry.first_position);
  }
}

void AllReduce::Complete(std::unique_ptr<SumPass> sum, int64_t now_us) {
  if (auto next = sum->NextPass(packets_.limits())) return Issue(std::move(next));
  ++stats_.sums_completed;
  stats_.tensor_bytes += sum->tensor_bytes();
  times_.OnCompleted(sum->tensor_bytes(), sum->started_us(), now_us);
  sum->Finish(nullptr);
}

// ---------------------------------------------------------------- failures

void AllReduce::Fail(const Failure& failure) {
  if (!failure_) failure_ = failure;
  times_.OnFailed();
  log_.Clear();
  while (const auto sum = log_.sums().TakeFirst()) sum->Finish(&*failure_);
}

std::optional<Stall> AllReduce::OldestStall() const {
  const SumPass* oldest = log_.sums().Oldest();
  if (oldest == nullptr) return std::nullopt;
  Stall stall{.site_name = oldest->spec().site_name, .key = oldest->key(), .since_us = oldest->started_us()};
  // Results come in the order of the log: the first chunk without one is what the sum waits for.
  const PlacedSegment* waiting = log_.FirstOf(*oldest);
  if (waiting == nullptr) {
    stall.waits_for_gpu = !oldest->IsNextReady() && !oldest->is_held();
    stall.waits_for_order = !stall.waits_for_gpu;
  } else if (log_.WaitsForElements(waiting->entry.index)) {
    stall.waits_for_gpu = true;
  } else {
    uint64_t position = waiting->entry.first_position;
    while (position + 1 < waiting->entry.end_position() && window_.Done(position)) ++position;
    const wire::Header header = packets_.HeaderOf(packets_.At(*waiting, waiting->ChunkAt(position)));
    stall.shard = packets_.sharding().ShardOf(position);
    stall.slot = header.slot;
    stall.version = header.version;
    stall.sequence = header.sequence;
  }
  if (!log_.empty() && log_.front().sum == nullptr) {
    const auto name = site_names_.find(log_.front().entry.id.site);
    stall.job_is_at = name == site_names_.end() ? "an unnamed sum" : name->second;
  }
  return stall;
}

}  // namespace passing
