#include "ffi/gathering/host_calls.h"

#include <cassert>
#include <future>
#include <stdexcept>

namespace passing {

size_t HostProgram::Add(SumSpec spec) {
  std::lock_guard lock(mutex_);
  assert(instances_.empty());
  specs_.push_back(std::move(spec));
  return specs_.size() - 1;
}

int32_t HostProgram::Begin(int64_t entry, int64_t device) {
  const auto attached = rendezvous_.attached();
  const uint64_t attachment = attached ? attached->number : 0;
  std::unique_lock lock(mutex_);
  for (SumSpec& spec : specs_) instances_.push_back(std::make_unique<Instance>(std::move(spec)));
  specs_.clear();
  if (attachment != attachment_) {
    // Where a session failed, some devices may not have come to all entries. Now all of them count anew.
    attachment_ = attachment;
    before_ = last_;
    begun_.clear();
  }
  const uint32_t count = ++begun_[{entry, device}];
  const auto execution = static_cast<int32_t>(static_cast<uint32_t>(before_) + count);
  if (IsLater(execution, last_)) last_ = execution;
  lock.unlock();
  for (const auto& instance : instances_) {
    if (!attached || !instance->spec().is_visit()) continue;
    if (const auto executable = instance->executable()) {
      rendezvous_.Visit(executable, execution, attached->first_device_id + device);
    }
  }
  return execution;
}

bool HostProgram::BeganBeforeSession(int32_t execution, uint64_t attachment) {
  std::lock_guard lock(mutex_);
  return attachment != attachment_ || !IsLater(execution, before_);
}

std::optional<Failure> HostProgram::Sum(size_t site, int32_t execution, int64_t group, int64_t member, int64_t device,
                                        Buffers buffers) {
  std::unique_lock lock(mutex_);
  Instance& instance = *instances_.at(site);
  lock.unlock();
  const SumSpec& spec = instance.spec();
  std::vector<size_t> bytes;
  for (const uint64_t elements : spec.leaf_elements) bytes.push_back(elements * SizeOf(spec.dtype));
  if (buffers.bytes != bytes || buffers.inputs.size() != bytes.size() || buffers.outputs.size() != bytes.size() ||
      (!buffers.residuals.empty() && buffers.residuals.size() != bytes.size())) {
    throw std::invalid_argument("buffers that aren't those of " + spec.site_name);
  }
  const auto attached = rendezvous_.attached();
  if (attached && BeganBeforeSession(execution, attached->number)) return BeganBefore(spec.site_name);
  if (attached) {
    // At once: if the platform has few threads for such calls, the other devices come only when this one has returned.
    if (auto failure = rendezvous_.failure()) return failure;
  }
  // Shared: set_value may still be at it when the future is ready.
  const auto promise = std::make_shared<std::promise<std::optional<Failure>>>();
  auto done = promise->get_future();
  Call call;
  call.run_id = execution;
  call.device = device + (attached ? attached->first_device_id : 0);
  call.member = member;
  call.inputs = std::move(buffers.inputs);
  call.outputs = std::move(buffers.outputs);
  call.residuals = std::move(buffers.residuals);
  call.done = [promise](const Failure* failure) {
    promise->set_value(failure ? std::optional(*failure) : std::nullopt);
  };
  rendezvous_.Arrive(instance.SiteOf(group), std::move(call));
  return done.get();
}

}  // namespace passing
