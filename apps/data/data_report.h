// What `lockstep data show` says of a dataset.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

struct ClassCount {
  std::string name{};
  std::int64_t images = 0;
};

struct BrokenImage {
  std::string path{};    // below the dataset's folder
  std::string reason{};  // "it is truncated"
};

// By the number of pixels.
struct ImageSizes {
  ImageSize smallest{};
  ImageSize median{};
  ImageSize largest{};
};

struct SplitReport {
  std::string name{};
  std::vector<ClassCount> classes{};
  std::int64_t images = 0;
  // "JPEG", "PNG"; of datasets in memory "RGB" or "grey" → images.
  std::map<std::string, std::int64_t> kinds{};
  std::optional<ImageSizes> sizes{};  // of the images that are not broken
  std::vector<BrokenImage> broken{};
};

struct DataReport {
  std::string title{};
  std::vector<SplitReport> splits{};
  // Whether whole images were decoded, not their headers alone.
  bool checked = false;
  // Of known datasets: what training normalizes the pixels with, divided by
  // 255, per channel. They are the original dataset's, whatever the files hold.
  std::vector<float> mean{};
  std::vector<float> standard_deviation{};

  bool is_intact() const;
};

// Classes are listed in their order up to 20; of more, those with the most and
// the fewest images of the first split.
std::string to_text(const DataReport& report);

// One object: "splits", a list with "classes", "images", "kinds", "smallest",
// "median" and "largest" (null without an intact image), and "broken"; for
// known datasets "mean" and "standard_deviation".
std::string to_json(const DataReport& report);

}  // namespace lockstep
