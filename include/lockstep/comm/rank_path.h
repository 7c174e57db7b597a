// The name of a rank's own file, from a pattern that all ranks share.
//
//     AppendedFile log(rank_path("logs/train-%r.log", *group));
//
// Threads: any thread.
// Errors:  InvalidArgument for an unknown letter after a percent sign, and for
//          a pattern that gives several ranks one file.
#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// `pattern` with these parts replaced:
//
//     %r   this process's rank in `group`; needed if the group has several
//     %h   the name of its host
//     %p   the number of its process, which differs from start to start
//     %%   a percent sign
//
// Without %p a restart has the name of the start before, and an AppendedFile
// appends to that file. `group` is the default group or another one with all
// ranks of the job: two ranks of two groups may have one number.
// Source: the letters of MPICH's -outfile-pattern and of NCCL_DEBUG_FILE.
std::filesystem::path rank_path(std::string_view pattern,
                                const ProcessGroup& group);

}  // namespace lockstep
