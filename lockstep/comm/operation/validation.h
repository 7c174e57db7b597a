// Checks an operation's arguments, as far as this rank alone can.
//
// Errors:  InvalidArgument with the reason and the next step.
#pragma once

#include "lockstep/comm/operation/backend.h"
#include "lockstep/comm/operation/operation.h"

namespace lockstep {

void validate(const Operation& operation, const GroupIdentity& identity);

}  // namespace lockstep
