// Counts programs and their executions by the numbers that XLA gives to executions.
//
// MPI tells of no program, and two of them may make calls that are alike. But each execution has a number, its run id,
// which XLA hands to the collectives (watch_xla.h): JAX counts a program's executions from a fingerprint of the program
// on. Fingerprints needn't be the same on all hosts, as those of programs with constants or callbacks of a host's own
// aren't; so we count programs in the order of their first calls, which is the same where hosts run the same programs.
#ifndef XLA_FFI_MPI_EXECUTIONS_H_
#define XLA_FFI_MPI_EXECUTIONS_H_

#include <cstdint>
#include <map>
#include <string>

namespace passing::mpi {

// A call of a device is part of this, counted from 0.
struct Origin {
  uint32_t program = 0;    // of those that have called in this group, in the order of their first calls
  uint32_t execution = 0;  // of this program, of those that have called
  uint32_t step = 0;       // call of this execution

  friend bool operator==(const Origin&, const Origin&) = default;
};

// For people.
inline std::string NameOf(const Origin& origin) {
  return "call " + std::to_string(origin.step) + " of execution " + std::to_string(origin.execution) + " of program " +
         std::to_string(origin.program);
}

// A device's, in a group.
class Executions {
 public:
  // The device calls, in the execution with this number.
  Origin Next(uint32_t run_id) {
    if (called_ && run_id == last_id_) {
      ++last_.step;
      return last_;
    }
    Program program = Take(run_id);
    last_ = {.program = program.number, .execution = program.executions++, .step = 0};
    programs_.emplace(run_id, program);
    last_id_ = run_id;
    called_ = true;
    return last_;
  }

 private:
  struct Program {
    uint32_t number;
    uint32_t executions = 0;
  };
  // A program may be executed this many times in a row without a call, as one that branches. Numbers have 32 bits, so
  // that another program's first one is rarely as near.
  static constexpr uint32_t kSkipped = 1000;

  Program Take(uint32_t run_id) {
    auto at = programs_.upper_bound(run_id);
    if (at == programs_.begin()) at = programs_.end();  // counts go on at 0
    if (at != programs_.begin()) {
      --at;
      if (run_id - at->first <= kSkipped && run_id != at->first) {
        const Program found = at->second;
        programs_.erase(at);
        return found;
      }
    }
    return {next_number_++};
  }

  std::map<uint32_t, Program> programs_;  // by their last execution's number
  uint32_t next_number_ = 0;
  uint32_t last_id_ = 0;
  bool called_ = false;
  Origin last_;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_EXECUTIONS_H_
