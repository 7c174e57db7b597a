// One image of many: samples of a dataset as thumbnails, a row per class.
//
// Threads: any thread.
// Errors:  those of the samples other than a file that cannot be read, which
//          becomes a red thumbnail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "apps/data/examine_data.h"
#include "lockstep/data/transforms.h"

namespace lockstep {

inline constexpr std::int64_t kThumbnailSide = 96;
inline constexpr std::int64_t kThumbnailGap = 4;  // also around all of them
inline constexpr std::int64_t kSheetColumns = 8;
inline constexpr std::int64_t kMostSheetRows = 10;

struct ContactSheetOptions {
  // Each sample is followed by what becomes of it.
  std::optional<Compose> augment{};
  // Of the choice of samples, and of the transforms in the first epoch.
  std::uint64_t seed = 0;
};

// The classes of the rows: all, or kMostSheetRows spread over them.
std::vector<std::size_t> sheet_rows(const ShownSamples& samples);

// Thumbnails keep the ratio of their image.
Image contact_sheet(const ShownSamples& samples,
                    const ContactSheetOptions& options);

}  // namespace lockstep
