// The output format of a command's report.
#pragma once

namespace lockstep {

enum class ReportFormat { kText, kJson };

}  // namespace lockstep
