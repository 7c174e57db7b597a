// The texts of a GPU group's errors, and the errors' origin.
//
// Threads: any thread.
#pragma once

#include <exception>
#include <string>

#include "src/comm/nccl/nccl_operation.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// The rank and device that report the error.
struct GpuPlace {
  const GroupIdentity& identity;
  int gpu = 0;
};

// The text of the Timeout of an operation whose deadline has passed.
std::string describe_timeout(const NcclOperation& pending, const GpuPlace& at);

// `error`, prefixed with the operation and the rank unless it names them.
// `operation` is null for an error outside of an operation.
std::exception_ptr explained(const std::exception_ptr& error,
                             const Operation* operation, const GpuPlace& at);

// Whether `error` comes from another rank, which all ranks learn from the CPU
// group. That group knows more about a lost rank than NCCL does, but learns of
// it later: where NCCL has lost a connection, waits up to a second for the
// group's error, which then replaces `error`.
bool came_from(Backend& control, std::exception_ptr& error);

}  // namespace lockstep
