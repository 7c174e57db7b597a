// The refusals that the decoders of all formats share; damage is reported with
// malformed_file() of src/data/data_file.h.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep {

// For an intact file that is not converted: `form` is "it is a GIF file".
InvalidArgument unsupported_image(std::string_view name, std::string_view form);

// Throws InvalidArgument where `size` has more than `most` pixels.
void check_pixel_count(std::string_view name, const ImageSize& size,
                       std::int64_t most);

}  // namespace lockstep
