// Reports device memory that runs out, anywhere in a pass or a step, as a
// Lockstep error with the rank, the requested size, and what to try.
//
//     lockstep::tell_out_of_memory(
//         {.group = *group, .device = device, .what = "training",
//          .next = "use smaller batches"},
//         [&] { train(model, batches); });
//
// The group is aborted with that text, unless it has only one rank: no rank can
// finish a step that another has left, and which rank fails first is a matter
// of chance. Where memory runs out in backward(), the wrapper (for example
// DistributedDataParallel) aborts first: then the other ranks get its text, and
// only the failed rank gets this one.
//
// Threads: as `body`; every rank makes its own call.
// Errors:  SystemError (ENOMEM) instead of c10::OutOfMemoryError and similar
//          ones; other exceptions of `body` pass through.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The work that uses the memory.
struct MemoryUser {
  ProcessGroup& group;
  c10::Device device;     // used where LibTorch does not name it
  std::string what = {};  // "training"
  // How it could need less: "use smaller batches".
  std::string next = {};
};

// Whether `error` reports that memory ran out.
bool is_out_of_memory(const c10::Error& error);

// Rethrows the exception being handled, translated as above.
[[noreturn]] void rethrow_out_of_memory(const MemoryUser& user);

// Calls `body` and returns its result.
template <class Body>
auto tell_out_of_memory(const MemoryUser& user, const Body& body)
    -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    rethrow_out_of_memory(user);
  }
}

}  // namespace lockstep
