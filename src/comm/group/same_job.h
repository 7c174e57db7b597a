// Checks at the start of a program that its ranks were started for one job:
// each describes its job by fields, such as its flags, and the ranks compare
// them.
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  DifferentJobs with the same message on every rank; those of
//          ProcessGroup's operations.
#pragma once

#include <span>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "src/comm/rendezvous/job_fields.h"

namespace lockstep {

// A usage error: the ranks of a job have different fields.
class DifferentJobs : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Names the fields that differ, and their values by rank. A group of one always
// agrees. Each name occurs once in `fields`; the ranks' lists may have
// different names.
void check_same_job(ProcessGroup& group, std::span<const JobField> fields);

}  // namespace lockstep
