// How a command prints what it has found.
#pragma once

namespace lockstep {

enum class ReportFormat { kText, kJson };

}  // namespace lockstep
