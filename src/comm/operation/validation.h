// Checks an operation's arguments, as far as this rank alone can.
//
// Errors:  InvalidArgument with the reason and the next step.
#pragma once

#include "src/comm/operation/backend.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

void validate(const Operation& operation, const GroupIdentity& identity);

}  // namespace lockstep
