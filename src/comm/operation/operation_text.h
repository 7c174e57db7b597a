// Parts of error messages about an operation, the same for all backends.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "src/comm/operation/backend.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// What is known of a rank that is gone and that another one still needs. kLeft:
// it left the group, and may have failed before.
enum class Departure { kInGoodOrder, kLeft, kInError };

// The lines of the error for `rank` that give the likely cause and the next
// step.
std::string advice_after(Departure departure, const GroupIdentity& identity,
                         int rank);

// `CALL timed out after 0.5 s (begun at 14:03:52) on rank 0 of 2 on node-a
// (group "default")`; `detail` follows the group's name.
std::string describe_timeout_of(std::string_view call,
                                Deadline::Clock::time_point begun,
                                const GroupIdentity& identity,
                                std::string_view detail = "");

}  // namespace lockstep
