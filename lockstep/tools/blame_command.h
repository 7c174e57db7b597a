// `lockstep blame DIR`: who was at fault when a job failed, or why it hangs.
//
// The command exits with 0 when it names a fault, kNoFault when the records
// show none, 2 when the folder cannot be used, and 1 when anything else goes
// wrong.
//
// Threads: the main thread.
// Errors:  InvalidArgument when the folder holds no record that can be used.
#pragma once

#include <string>

#include "lockstep/tools/blame_verdict.h"
#include "lockstep/tools/report_format.h"

namespace lockstep {

inline constexpr int kNoFault = 3;

struct BlameOptions {
  std::string folder;
  ReportFormat format = ReportFormat::kText;
};

struct BlameReport {
  std::string text;  // what the command prints
  Fault fault = Fault::kNone;
};

BlameReport blame(const BlameOptions& options);

// Its parts.
std::string to_text(const Verdict& verdict, const Evidence& evidence);
std::string to_json(const Verdict& verdict, const Evidence& evidence);

}  // namespace lockstep
