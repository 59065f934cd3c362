#include "mpi/process.h"

#include <string>
#include <utility>

#include "mpi/failures.h"

namespace passing::mpi {

int Process::Guarded(std::string_view function, const std::function<void()>& body) {
  try {
    server_.Blocking(body);
    return abi::MPI_SUCCESS;
  } catch (const std::exception&) {
    return codes_.CodeOf(CurrentFailure(std::string(function)));
  }
}

void Process::Begin() {
  try {
    const Server::World world = server_.Begin();
    const std::lock_guard lock(mutex_);
    world_ = world;
    failure_.reset();
    ended_ = false;
  } catch (const std::exception&) {
    const Failure failure = CurrentFailure("MPI_Init_thread");
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    throw;
  }
}

void Process::End() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || !world_) return;
    ended_ = true;
  }
  server_.End();
}

Server::World Process::world() const {
  const std::lock_guard lock(mutex_);
  if (world_) return *world_;
  throw failure_ ? Failed(*failure_) : Failed("UsageError", "MPI_Init_thread wasn't called before.");
}

bool Process::begun() const {
  const std::lock_guard lock(mutex_);
  return world_.has_value();
}

bool Process::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

abi::Handle Process::Split(int32_t color, int32_t key) {
  Opened opened;
  try {
    const Server::World own = world();
    Group group = server_.Split(color, key);
    if (key < 0 || static_cast<size_t>(key) >= group.hosts.size() || group.hosts[key] != own.rank) {
      throw Failed("PassingError", "The group of a device of this process doesn't have it.");
    }
    const std::lock_guard lock(mutex_);
    std::weak_ptr<Communicator>& known = communicators_[group.id];
    std::shared_ptr<Communicator> communicator = known.lock();
    if (!communicator) known = communicator = std::make_shared<Communicator>(server_, std::move(group), own.rank);
    opened.device = std::make_shared<Device>(std::move(communicator), key);
  } catch (const std::exception&) {
    opened.failure = CurrentFailure("MPI_Comm_split");
  }
  const std::lock_guard lock(mutex_);
  opened_[next_handle_] = std::move(opened);
  return next_handle_++;
}

std::shared_ptr<Device> Process::DeviceOf(abi::Handle communicator) const {
  const std::lock_guard lock(mutex_);
  const auto found = opened_.find(communicator);
  if (found == opened_.end()) throw Failed("PassingError", "XLA called a communicator that isn't open.");
  if (found->second.failure) throw Failed(*found->second.failure);
  return found->second.device;
}

std::shared_ptr<Device> Process::FindDevice(abi::Handle communicator) const {
  const std::lock_guard lock(mutex_);
  const auto found = opened_.find(communicator);
  return found == opened_.end() ? nullptr : found->second.device;
}

bool Process::BeginCall(abi::Handle communicator, std::optional<uint32_t> run_id, bool is_float16) {
  const std::shared_ptr<Device> device = FindDevice(communicator);
  if (device) device->BeginCall(run_id, is_float16);
  return device != nullptr;
}

void Process::EndCall(abi::Handle communicator) {
  if (const std::shared_ptr<Device> device = FindDevice(communicator)) device->EndCall();
}

void Process::Free(abi::Handle communicator) {
  decltype(opened_)::node_type freed;  // destroyed without the lock: it may be the last owner of a transport
  const std::lock_guard lock(mutex_);
  freed = opened_.extract(communicator);
  std::erase_if(communicators_, [](const auto& each) { return each.second.expired(); });
}

abi::Handle Process::Keep(PendingMessage message) {
  const std::lock_guard lock(mutex_);
  messages_.emplace(next_handle_, std::move(message));
  return next_handle_++;
}

PendingMessage Process::Take(abi::Handle request) {
  const std::lock_guard lock(mutex_);
  auto node = messages_.extract(request);
  if (!node) throw Failed("PassingError", "XLA waits for a message that it didn't start.");
  return std::move(node.mapped());
}

}  // namespace passing::mpi
