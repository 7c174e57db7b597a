// Whether an operation can work at all, judged by what this rank passed alone.
//
// Threads: pure functions.
// Errors:  InvalidArgument that says what is wrong and what to do.
#pragma once

#include "lockstep/comm/backend.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

void validate(const Operation& operation, const GroupIdentity& identity);

}  // namespace lockstep
