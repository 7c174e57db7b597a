// `lockstep doctor`: what this machine has for training, what is missing, and
// what to do about it.
//
// The command exits with 0 when ranks can work together on this host, through
// shared memory; with 1 when not, 2 when the environment cannot be read.
//
// Threads: main. It starts a few of its own, which have ended when it returns.
// Errors:  InvalidArgument for environment variables that cannot be read; what
//          the machine lacks is a finding, not an error.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/tools/report_format.h"

namespace lockstep {

struct DoctorOptions {
  ReportFormat format = ReportFormat::kText;
};

enum class Health {
  kGood,
  kLimited,  // training works, but not all of it, or slower than it could
  kBad,      // training on this host does not work
};

// "good", "limited", "bad".
std::string_view name_of(Health health);

struct Finding {
  std::string topic;  // "shared memory"
  Health health = Health::kGood;
  std::string text{};  // what there is
  std::string next{};  // what to do; empty where nothing need be done
};

struct DoctorReport {
  std::vector<Finding> findings;

  // Whether nothing is bad.
  bool can_train() const;
};

// Looks at all of it; takes well under a second.
DoctorReport examine(const EnvironmentLookup& lookup);

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

}  // namespace lockstep
