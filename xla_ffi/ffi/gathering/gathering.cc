#include "ffi/gathering/gathering.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "ffi/naming/sum_names.h"

namespace passing {
namespace {

std::string Members(const std::vector<Call>& calls) {
  std::vector<int64_t> members;
  for (const Call& call : calls) members.push_back(call.member);
  return Joined(members);
}

// The row of a member. A member is its row; or the hosts' rows stand between those of the axes before them and the axes
// after, of which there are `rows_inside`.
uint64_t RowOf(const SumSpec& spec, const Call& call, uint32_t rank) {
  const auto member = static_cast<uint64_t>(call.member);
  if (spec.rows_inside == 0) return member;
  const uint64_t outside = member / spec.rows_inside, inside = member % spec.rows_inside;
  return (outside * std::max(spec.world_size, 1u) + rank) * spec.rows_inside + inside;
}

// Which of the rows of each leaf are those of a host with these devices?
std::vector<bool> OwnRows(const SumSpec& spec, const std::vector<Call>& calls, uint32_t rank) {
  if (spec.moves == Moves::kAll) return {};
  const bool is_broadcast = spec.moves == Moves::kBroadcast;
  std::vector<bool> own(is_broadcast ? 1 : spec.member_count);
  for (const Call& call : calls) {
    const uint64_t row = RowOf(spec, call, rank);
    if (is_broadcast) {
      if (row == spec.root) own[0] = true;
    } else {
      own.at(row) = true;
    }
  }
  return own;
}

}  // namespace

std::variant<Sum, Failure> MakeSum(const std::shared_ptr<Gathering>& gathering, const SumKey& key) {
  const SumSite& site = *gathering->site;
  auto& calls = gathering->calls;
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.member < b.member; });
  Sum sum{.key = key, .spec = site.spec, .inputs = {}, .outputs = {}, .residuals = {}, .done = {}};
  const size_t leaf_count = site.spec->leaf_elements.size();
  sum.inputs.reserve(calls.size() * leaf_count);
  sum.outputs.reserve(calls.size() * leaf_count);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    assert(call.inputs.size() == leaf_count && call.outputs.size() == leaf_count);
    assert(call.residuals.size() == (calls.front().residuals.empty() ? 0 : leaf_count));
    const uint32_t nth = i % site.spec->replica_count;
    if (call.member != calls[i - nth].member || (i > 0 && nth == 0 && call.member == calls[i - 1].member)) {
      return DontBelongTogether(*gathering);
    }
    if (nth != 0) continue;  // carries the same data as the replica before it
    if (site.spec->rows_alone) sum.rows.push_back(RowOf(*site.spec, call, gathering->rank));
    sum.inputs.insert(sum.inputs.end(), call.inputs.begin(), call.inputs.end());
    sum.outputs.insert(sum.outputs.end(), call.outputs.begin(), call.outputs.end());
    sum.residuals.insert(sum.residuals.end(), call.residuals.begin(), call.residuals.end());
  }
  sum.own_rows = OwnRows(*site.spec, calls, gathering->rank);
  return sum;
}

Failure DontBelongTogether(const Gathering& gathering) {
  return {"ProgramMismatchError", "the devices that met at " + gathering.site->spec->site_name +
                                      " don't belong together: members " + Members(gathering.calls)};
}

namespace {

// Replicas carry the same data, so their sums are those of the first.
void CopyToReplicas(const Gathering& gathering) {
  const SumSpec& spec = *gathering.site->spec;
  const auto& calls = gathering.calls;
  const uint64_t parts = spec.rows_alone && spec.moves == Moves::kScatter ? spec.member_count : 1;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& source = calls[i - i % spec.replica_count];
    for (size_t leaf = 0; i % spec.replica_count != 0 && leaf < source.outputs.size(); ++leaf) {
      const size_t bytes = spec.leaf_elements[leaf] / parts * SizeOf(spec.dtype);
      std::memcpy(calls[i].outputs[leaf], source.outputs[leaf], bytes);
      if (!source.residuals.empty()) std::memcpy(calls[i].residuals[leaf], source.residuals[leaf], bytes);
    }
  }
}

}  // namespace

void Finish(CompletionPool& pool, const std::shared_ptr<Gathering>& gathering, const Failure* failure,
            std::optional<int64_t> here) {
  const bool copies = !failure && gathering->site->spec->replica_count > 1;
  auto complete_all = [&pool, gathering, here, copies, failure = failure ? std::optional(*failure) : std::nullopt] {
    if (copies) CopyToReplicas(*gathering);
    std::vector<std::function<void()>> tasks;
    std::function<void(const Failure*)> done_here;
    for (Call& call : gathering->calls) {
      if (call.device == here) {
        done_here = std::move(call.done);
      } else {
        tasks.push_back([done = std::move(call.done), failure] { done(failure ? &*failure : nullptr); });
      }
    }
    pool.Run(std::move(tasks));
    if (done_here) done_here(failure ? &*failure : nullptr);
  };
  if (copies && !here) {
    pool.Run(std::move(complete_all));
  } else {
    complete_all();
  }
}

// A device may compute for as long as it likes before it comes, by itself under lax.cond or in a host callback, and no
// device can tell that from one that never will. So this is the session's deadline and nothing shorter, even though
// XLA aborts the process 40 s after one of the devices began to wait in a collective of its own: only a deadline below
// that comes first.
Failure TooLate(const Gathering& gathering, double deadline_s) {
  const SumSite& site = *gathering.site;
  const std::vector<Call>& calls = gathering.calls;
  return {"DeadlineExceededError", site.spec->site_name + ": only " + std::to_string(calls.size()) + " of " +
                                       std::to_string(site.call_count()) + " devices of this host came within " +
                                       std::to_string(static_cast<int64_t>(deadline_s)) + " s (members " +
                                       Members(calls) + ")"};
}

}  // namespace passing
