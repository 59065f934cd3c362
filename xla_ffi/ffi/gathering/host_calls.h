// Sums that a program calls through Python, where XLA doesn't call our handlers (a TPU).
//
// Such a call blocks until the sum is done, and learns neither its device nor XLA's number of the execution. So the
// program says both: each call comes with the index of its device among this process's, and with a number that the
// program was given when it began. That number is made here, by counting how often the program began on each device.
#ifndef XLA_FFI_FFI_GATHERING_HOST_CALLS_H_
#define XLA_FFI_FFI_GATHERING_HOST_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/gathering/rendezvous.h"
#include "ffi/naming/instance.h"

namespace passing {

// The sums of one lowered module. Devices are indices among this process's.
class HostProgram {
 public:
  explicit HostProgram(Rendezvous& rendezvous) : rendezvous_(rendezvous) {}
  HostProgram(const HostProgram&) = delete;

  // While it is lowered: one more sum, or a visit. Returns which one it is.
  size_t Add(SumSpec spec);

  // A device enters an execution here. A program may have several entries: each is passed once in each execution.
  // Returns the execution's number, for all its calls: higher than those before, and the same on all devices.
  int32_t Begin(int64_t entry, int64_t device);

  // Adds a device's buffers to the sum of a site. Blocks until the sum is done, or has failed, or the session's
  // deadline is past; returns what went wrong, if anything did. `buffers` are like those of a Call; throws
  // std::invalid_argument if their sizes aren't the site's.
  struct Buffers {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    std::vector<size_t> bytes;       // of each input, and of the memory for its results
    std::vector<void*> residuals{};  // empty, or one for each input
  };
  std::optional<Failure> Sum(size_t site, int32_t execution, int64_t group, int64_t member, int64_t device,
                             Buffers buffers);

 private:
  // Tells whether this execution began before the session did: other devices, or hosts, may have lost parts of it.
  bool BeganBeforeSession(int32_t execution, uint64_t attachment);

  Rendezvous& rendezvous_;

  std::mutex mutex_;
  std::vector<SumSpec> specs_;  // until it is executed: then it is known to be complete
  // Its sites, from then on. They come into the list of their executable all together, whatever else is compiled
  // meanwhile.
  std::vector<std::unique_ptr<Instance>> instances_;
  uint64_t attachment_ = 0;                                // during which the last execution began; 0: without any
  int32_t before_ = 0;                                     // the highest number that was given before it
  int32_t last_ = 0;                                       // the highest one of all
  std::map<std::pair<int64_t, int64_t>, uint32_t> begun_;  // since then, how often, by entry and device
};

}  // namespace passing

#endif  // XLA_FFI_FFI_GATHERING_HOST_CALLS_H_
