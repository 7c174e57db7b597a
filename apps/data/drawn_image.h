// Draws the images of a synthetic dataset: a shape or a pattern per class, in
// any place, size, direction and colors.
//
// Colors, brightness and contrast are drawn independently of the class, so the
// mean color of an image says nothing of it.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "src/data/sample_random.h"

namespace lockstep {

inline constexpr int kMostDrawnClasses = 100;

// The names of the first `count` classes, 1 to kMostDrawnClasses: shapes and
// patterns ("ring", "checkerboard"), then shapes with patterns
// ("ring_with_dots"). They are names of folders, too.
std::vector<std::string> drawn_class_names(int count);

// An image of the class with that index, as `random` decides.
Image draw_image(int class_index, const ImageSize& size, SampleRandom& random);

}  // namespace lockstep
