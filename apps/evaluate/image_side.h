// What --image-size of `lockstep evaluate` and `lockstep predict` means for a
// trained model.
//
// Threads: any thread.
// Errors:  InvalidArgument that names the flag, its value, and what the model
//          takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// What a trained model's file says of its images.
struct ModelImages {
  std::string file;
  std::string images;  // "3 x 64 x 64"; empty if the file does not say
};

// The side of the square images that the model takes of a folder: the one in
// its file; of a file that names none the `asked` one. Refuses an `asked` side
// that is not the model's.
std::int64_t image_side(std::optional<std::int64_t> asked,
                        const ModelImages& model);

// Refuses an `asked` side for images that are not a folder's; `title` names
// them.
void check_no_image_side(std::optional<std::int64_t> asked,
                         const ModelImages& model, std::string_view title);

}  // namespace lockstep
