// A group of devices, as this process has it. The calls of its local devices gather; the last one to come starts the
// host's sum, and all return together.
#ifndef XLA_FFI_MPI_COMMUNICATOR_H_
#define XLA_FFI_MPI_COMMUNICATOR_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpi/call.h"
#include "mpi/executions.h"
#include "mpi/message.h"
#include "mpi/server.h"

namespace passing::mpi {

class Communicator {
 public:
  // `rank`: this process's.
  Communicator(Server& server, Group group, int32_t rank);
  Communicator(const Communicator&) = delete;

  Server& server() const { return server_; }
  const Group& group() const { return group_; }
  int32_t size() const { return static_cast<int32_t>(group_.hosts.size()); }

  // Makes the call of this number of the local device with this index. Blocks until its output is there; throws Failed.
  // `origin`: if it is known, which it is on all devices or on none.
  void Collect(int32_t index, uint64_t number, const std::optional<Origin>& origin, const Call& call);

 private:
  struct Shared;
  struct Gathering;

  // Names a call by itself and by those before it: the transport predicts the next sum of a job from the last one's
  // site, and a program has many calls that are alike.
  uint64_t SiteOf(uint64_t number, const std::string& name, uint32_t program);
  void Start(const std::shared_ptr<Gathering>& gathering);
  void Wait(Gathering& gathering, int32_t index, bool starter);
  // Without the lock.
  void Fail(const Failure& failure);

  Server& server_;
  const Group group_;
  std::vector<int32_t> local_devices_;  // their indices
  int32_t host_count_ = 1;
  const std::shared_ptr<Shared> shared_;  // the callbacks of sums own it, too
  // The names of the calls before, hashed. A starter alone touches them, after the one before it.
  std::array<uint64_t, 16> earlier_{};
};

class PendingMessage;

// One device's end of a communicator. XLA calls it from one thread at a time.
class Device {
 public:
  Device(std::shared_ptr<Communicator> communicator, int32_t index)
      : communicator_(std::move(communicator)), index_(index) {}

  int32_t index() const { return index_; }
  int32_t size() const { return communicator_->size(); }

  // Surround what XLA calls in an execution, if it tells which one: then calls that are alike differ by their origin.
  // `is_float16`: what is said to be uint16 is.
  void BeginCall(std::optional<uint32_t> run_id, bool is_float16) {
    if (run_id) origin_ = executions_.Next(*run_id);
    is_float16_ = is_float16;
  }
  void EndCall() {
    origin_.reset();
    is_float16_ = false;
  }

  // XLA's name of a dtype, as it is meant.
  ElementType TypeOf(abi::Handle type) const { return is_float16_ ? ElementType{DType::kFloat16} : mpi::TypeOf(type); }
  void Collect(const Call& call) { communicator_->Collect(index_, next_number_++, origin_, call); }
  PendingMessage Send(const void* data, size_t bytes, int32_t to, int32_t tag);
  PendingMessage Receive(void* data, size_t bytes, int32_t from, int32_t tag);

 private:
  friend class PendingMessage;
  void CheckIndex(int32_t other) const;
  PendingMessage NewMessage(const char* kind, size_t bytes, const char* direction, int32_t other) const;
  int32_t Tag(int32_t tag) const;

  std::shared_ptr<Communicator> communicator_;
  const int32_t index_;
  uint64_t next_number_ = 0;
  Executions executions_;
  std::optional<Origin> origin_;
  bool is_float16_ = false;
};

// XLA waits for one of these.
class PendingMessage {
 public:
  // Blocks until it is done, and writes what was received; throws Failed.
  void Wait();

 private:
  friend class Device;
  std::shared_ptr<Communicator> communicator_;
  int32_t index_ = 0;
  std::string what_;
  std::shared_ptr<Message> message_;
  void* destination_ = nullptr;  // null if it is sent
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_COMMUNICATOR_H_
