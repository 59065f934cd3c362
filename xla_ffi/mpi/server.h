// Python answers XLA's MPI interface what C++ can't: who JAX's processes are, which groups their devices form, and how
// messages travel.
#ifndef XLA_FFI_MPI_SERVER_H_
#define XLA_FFI_MPI_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/sums/sum.h"
#include "mpi/message.h"

namespace passing::mpi {

// The devices of one of XLA's cliques, in its order.
struct Group {
  int64_t id = 0;
  std::string name;            // for people: "4 devices, from device 0 on, of ranks 0, 1"
  std::vector<int32_t> hosts;  // by the devices' indices, the ranks of their processes
  std::shared_ptr<Collective> collective;
  double deadline_s = 60;
};

// Each may be called from any thread, without any lock, and throws what CurrentFailure knows.
class Server {
 public:
  virtual ~Server() = default;

  struct World {
    int32_t rank = 0;  // of this process
    int32_t size = 1;
  };
  virtual World Begin() = 0;
  // The group of a device, whose index in it is `key`.
  virtual Group Split(int32_t color, int32_t key) = 0;
  // These return at once. The message is done later, from any thread, or when Python drops it.
  virtual void Send(int64_t group, int32_t own_index, int32_t to_index, int32_t tag,
                    std::shared_ptr<Message> message) = 0;
  virtual void Receive(int64_t group, int32_t own_index, int32_t from_index, int32_t tag,
                       std::shared_ptr<Message> message) = 0;
  // Returns how many bytes of messages have come and gone. Asked each second that a call waits.
  virtual uint64_t MovedBytes() = 0;
  // Asked then, too. A failure ends the call. `number`: of the call, or -1 for a message; `still_s`: since the last
  // progress.
  virtual std::optional<Failure> Stalled(int64_t group, int32_t own_index, int64_t number, const std::string& what,
                                         double still_s) = 0;
  // Returns once all that the program has begun is over: JAX ends.
  virtual void End() = 0;
  // Runs work that may block. A caller may hold what other threads need, which is let go for so long.
  virtual void Blocking(const std::function<void()>& work) { work(); }
};

// The server of this process (bind_mpi.cc).
Server& TheServer();

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_SERVER_H_
