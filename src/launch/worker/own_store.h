// The store of a job, served by the launcher that calls it.
#pragma once

#include <chrono>

namespace lockstep {

// How long a store in this process may take to answer.
inline constexpr std::chrono::seconds kOwnStoreAnswers{10};

}  // namespace lockstep
