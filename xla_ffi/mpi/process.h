// Keeps what XLA's MPI interface has open in this process: communicators and messages, by their handles.
#ifndef XLA_FFI_MPI_PROCESS_H_
#define XLA_FFI_MPI_PROCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "mpi/abi.h"
#include "mpi/communicator.h"
#include "mpi/failures.h"
#include "mpi/jaxlib/watch_xla.h"
#include "mpi/server.h"

namespace passing::mpi {

class Process : public CallObserver {
 public:
  explicit Process(Server& server) : server_(server) {}

  // Calls `body`, which throws, and returns the code of what went wrong.
  int Guarded(std::string_view function, const std::function<void()>& body);

  void Begin();
  void End();
  Server::World world() const;  // throws if it hasn't begun
  bool begun() const;
  bool ended() const;

  // A split that fails gives a handle, too: XLA doesn't look at the code, so each call of that communicator fails.
  abi::Handle Split(int32_t color, int32_t key);
  // A device's end of a communicator; throws if there is none, or its split has failed.
  std::shared_ptr<Device> DeviceOf(abi::Handle communicator) const;
  void Free(abi::Handle communicator);

  bool BeginCall(abi::Handle communicator, std::optional<uint32_t> run_id, bool is_float16) override;
  void EndCall(abi::Handle communicator) override;

  abi::Handle Keep(PendingMessage message);
  PendingMessage Take(abi::Handle request);

  ErrorCodes& codes() { return codes_; }

 private:
  struct Opened {
    std::shared_ptr<Device> device;
    std::optional<Failure> failure;
  };

  // The device whose communicator it is; null if there is none.
  std::shared_ptr<Device> FindDevice(abi::Handle communicator) const;

  Server& server_;
  ErrorCodes codes_;

  mutable std::mutex mutex_;
  std::optional<Server::World> world_;
  std::optional<Failure> failure_;  // of Begin
  bool ended_ = false;
  abi::Handle next_handle_ = abi::kFirstHandle;
  std::map<abi::Handle, Opened> opened_;
  std::map<int64_t, std::weak_ptr<Communicator>> communicators_;  // by the id of the group
  std::map<abi::Handle, PendingMessage> messages_;
};

// That of this library (exports/exports.cc).
Process& TheProcess();

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_PROCESS_H_
