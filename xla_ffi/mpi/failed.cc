#include "mpi/failed.h"

#include <new>

namespace passing::mpi {

Failure CurrentFailure(const std::string& what) {
  try {
    throw;
  } catch (const Failed& failed) {
    return failed.failure();
  } catch (const std::bad_alloc&) {
    return {"PassingError",
            what + " found too little memory on this host. Try smaller arrays, or fewer devices a host."};
  } catch (const std::exception& error) {
    return {"PassingError", what + ": " + error.what()};
  }
}

}  // namespace passing::mpi
