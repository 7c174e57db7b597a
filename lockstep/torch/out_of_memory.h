// Device memory that runs out, anywhere in a pass or a step, as an error of
// ours that says on which rank, how much was asked for, and what to try.
//
//     lockstep::tell_out_of_memory(
//         {.group = *group, .device = device, .what = "training",
//          .next = "use smaller batches"},
//         [&] { train(model, batches); });
//
// The group is aborted with that text, unless it has one rank only: no rank can
// finish a step that another has left, and who fails first is seen by chance.
// Where it runs out in backward(), a Reducer aborts first: then the others hear
// the reducer's text, and this one is read on the rank that failed.
//
// Threads: as `body`; every rank calls it for itself.
// Errors:  SystemError (ENOMEM) in the place of c10::OutOfMemoryError and its
//          kind; what else `body` throws.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Who uses the memory.
struct MemoryUser {
  ProcessGroup& group;
  c10::Device device;     // where LibTorch does not say which
  std::string what = {};  // "training"
  // What makes it need less: "use smaller batches".
  std::string next = {};
};

// Whether LibTorch means that.
bool is_out_of_memory(const c10::Error& error);

// Throws the exception that is being handled, as it is to be told.
[[noreturn]] void rethrow_out_of_memory(const MemoryUser& user);

// Calls `body` and returns what it does.
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
