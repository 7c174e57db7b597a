// Resizes images as PIL does: in two passes, along the rows and along the
// columns, each output pixel a weighted sum of the input pixels that it covers.
// The weights are whole numbers of 22 binary places, and each pass rounds to 8
// bits, so the result is PIL's bit for bit.
//
// Cost: per output pixel and pass, support x scale taps (at least 2 of
// kBilinear, 4 of kBicubic).
//
// Threads: a Resizer belongs to one thread; it keeps its memory.
// Source:  Pillow 13, whose filters are those of Turkowski, "Filters for common
//          resampling tasks", 1990.
#pragma once

#include <cstdint>
#include <vector>

#include "src/data/transform/operation.h"
#include "src/data/transform/pixel_kernels.h"

namespace lockstep::transforms {

struct PixelSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The input pixels of which a side's computed pixels are made. The input has
// pixels 0 … `in` - 1; side.offset does not count.
PixelSpan sources_of(const ResizeSide& side, std::int64_t in,
                     Interpolation interpolation);

class Resizer {
 public:
  // Writes the result to `output`, which is another image than `input`.
  void apply(const ResizeTo& resize, const Image& input, Image& output);

 private:
  // Which inputs make each output along one side, with the weights of output i
  // from i x taps on.
  struct Weights {
    std::int64_t taps = 0;
    std::vector<WeightedSpan> spans{};
    std::vector<std::int32_t> values{};
    std::vector<double> exact{};  // of one output
  };

  static void find_weights(const ResizeSide& side, std::int64_t in,
                           Interpolation interpolation, Weights& weights);
  // Makes groups of the weights, as WeightedRows wants them.
  void group_weights(std::int64_t channels);
  // Each changes one side.
  void resize_rows(const ResizeSide& side, Interpolation interpolation,
                   const Image& input, Image& output);
  void resize_columns(const ResizeSide& side, Interpolation interpolation,
                      const Image& input, Image& output);
  void pick_nearest(const ResizeSide& rows, const ResizeSide& columns,
                    const Image& input, Image& output);

  Weights weights_{};
  std::int64_t groups_ = 0;
  std::vector<std::int32_t> grouped_{};
  std::vector<std::uint8_t> last_rows_{};
  std::vector<std::int64_t> nearest_rows_{};
  std::vector<std::int64_t> nearest_columns_{};
  Image between_{};
};

}  // namespace lockstep::transforms
