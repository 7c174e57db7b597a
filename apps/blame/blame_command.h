// `lockstep blame DIR`: names the ranks at fault when a job failed, or the
// reason why it hangs.
//
// The command exits with 0 when it names a fault, kNoFault when the records
// show no fault, 2 when the folder cannot be used, and 1 on any other error.
//
// Threads: the main thread.
// Errors:  InvalidArgument when the folder holds no usable record.
#pragma once

#include <string>

#include "apps/blame/blame_verdict.h"
#include "apps/job/report_format.h"

namespace lockstep {

inline constexpr int kNoFault = 3;

struct BlameOptions {
  std::string folder;
  ReportFormat format = ReportFormat::kText;
};

struct BlameReport {
  std::string text;  // the command's output
  RootFault fault = RootFault::kNone;
};

BlameReport blame(const BlameOptions& options);

// The output's parts.
std::string to_text(const BlameVerdict& verdict, const Evidence& evidence);
std::string to_json(const BlameVerdict& verdict, const Evidence& evidence);

}  // namespace lockstep
