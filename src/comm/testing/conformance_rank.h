// One rank's part in a conformance case, the same for every backend and for
// ranks that are threads or processes.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/process_group.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/testing/conformance_case.h"

namespace lockstep {

// Runs `c` on `group` and compares every element with the expected result,
// which each rank computes by itself from `seed`. Returns "" or a description
// of the error. With `gpu` the buffers lie there; for Memory::kGroup, the group
// allocates them.
std::string run_conformance_case(ProcessGroup& group, const ConformanceCase& c,
                                 std::uint64_t seed, const Gpu* gpu = nullptr);

}  // namespace lockstep
