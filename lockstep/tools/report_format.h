// How a command prints what it has found.
//
// Threads: a value.
#pragma once

namespace lockstep {

enum class ReportFormat { kText, kJson };

}  // namespace lockstep
