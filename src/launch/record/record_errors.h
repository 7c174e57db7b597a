// What the records of a job's ranks (docs/formats/record.md) add to the
// launcher's report.
//
// Threads: any thread; reads the disk.
// Errors:  none; an unreadable record adds nothing.
#pragma once

#include <filesystem>

namespace lockstep {

// Whether a record in `folder` has an error other than that `rank` is gone,
// which the launcher knows better.
bool have_errors_beside_loss_of(int rank, const std::filesystem::path& folder);

}  // namespace lockstep
