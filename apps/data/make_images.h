// `lockstep data make-images`: writes a synthetic image folder in ImageNet's
// layout, FOLDER/train/CLASS/NAME.jpg and FOLDER/val/CLASS/NAME.jpg.
//
// The same options give the same bytes, on any number of threads; another
// version of libjpeg may give others. The files are made in a folder beside
// FOLDER, `.FOLDER.PID-0.tmp`, which takes the name at the end: a run that is
// stopped leaves nothing under the name.
//
// Threads: the main thread; it starts others.
// Errors:  InvalidArgument for options out of range, and for a folder that has
//          something in it; Error where the files cannot be written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct MakeImagesOptions {
  std::string folder{};
  int classes = 10;
  std::int64_t count = 5000;  // images of train
  std::int64_t size = 64;     // the shortest side, in pixels
  // Images of val, by one of the two: without, a tenth of `count`.
  std::optional<std::int64_t> test_count{};
  std::optional<double> test_share{};
  std::string format = "jpeg";
  std::uint64_t seed = 0;
  int threads = 1;
};

void add_make_images_options(CLI::App& command, MakeImagesOptions& options);

// Call it after parsing: checks the options and sets `test_count`. `cores` are
// those that the process may use.
void complete_make_images_options(MakeImagesOptions& options, int cores);

// Makes the folder of complete options. Returns a report for people.
std::string make_images(const MakeImagesOptions& options);

}  // namespace lockstep
