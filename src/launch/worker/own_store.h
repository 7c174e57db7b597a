// The deadlines of a launcher's calls to the store of its job.
#pragma once

#include <chrono>

namespace lockstep {

// How long a store in this process may take to answer.
inline constexpr std::chrono::seconds kOwnStoreAnswers{10};

// The same for a job's store, which the launcher of another host may serve.
// Keep-alive probes end a connection that is cut before that.
inline constexpr std::chrono::seconds kJobStoreAnswers{30};

}  // namespace lockstep
