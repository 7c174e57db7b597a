// `lockstep doctor`: what this machine has for training, what it lacks, and
// what to do about it.
//
// The command exits with 0 when ranks can work together on this host through
// shared memory, with 1 when they cannot, with 2 when the environment is
// invalid.
//
// Threads: the main thread. It starts threads and joins them before it returns.
// Errors:  InvalidArgument for malformed environment variables. A deficiency of
//          the machine is a finding, not an error.
#pragma once

#include <string>
#include <vector>

#include "apps/job/report_format.h"
#include "src/base/settings.h"

namespace lockstep {

struct DoctorOptions {
  ReportFormat format = ReportFormat::kText;
  bool host_only = false;  // as a rank of a job, do not look for the others
};

enum class Health {
  kGood,
  kLimited,  // training works, but some features do not or it is slower
  kBad,      // training on this host does not work
};

// "good", "limited", "bad".
std::string_view name_of(Health health);

struct Finding {
  std::string topic;  // "shared memory"
  Health health = Health::kGood;
  std::string text{};  // the state
  std::string next{};  // what to do; empty: nothing
};

struct DoctorReport {
  std::vector<Finding> findings;

  // Whether no finding is bad.
  bool can_train() const;
};

// Checks everything; takes well under a second.
DoctorReport examine(const EnvironmentLookup& lookup);

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

}  // namespace lockstep
