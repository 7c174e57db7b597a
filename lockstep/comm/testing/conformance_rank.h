// One rank's part in a conformance case, the same for every backend and for
// ranks that are threads or processes.
//
// Threads: pure functions but for what the group does.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/testing/conformance_case.h"

namespace lockstep {

// Runs `c` on `group` and compares every element with the obvious result, which
// each rank works out by itself from `seed`. Returns "" or what is wrong. With
// `gpu` the buffers lie there, in memory of the group's for Memory::kGroup.
std::string run_conformance_case(ProcessGroup& group, const ConformanceCase& c,
                                 std::uint64_t seed, const Gpu* gpu = nullptr);

}  // namespace lockstep
