#include "src/train/model/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <array>

#include "lockstep/base/error.h"
#include "src/base/suggest.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 3> kPrecisions{"float32", "bfloat16",
                                                      "float16"};

}  // namespace

std::span<const std::string_view> known_precisions() { return kPrecisions; }

Precision parse_precision(std::string_view name) {
  if (name == "float32") return Precision::kFloat32;
  if (name == "bfloat16") return Precision::kBfloat16;
  if (name == "float16") return Precision::kFloat16;
  throw InvalidArgument(unknown_name("precision", name, kPrecisions));
}

void allow_tf32() {
  at::globalContext().setFloat32MatmulPrecision("high");
  at::globalContext().setAllowTF32CuDNN(true);
}

MixedPrecision::MixedPrecision(Precision precision, c10::DeviceType device)
    : active_(precision != Precision::kFloat32), device_(device) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  previous_type_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(
      device_, precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16);
  at::autocast::increment_nesting();
}

// Autocast caches converted weights; the next step changes the weights, so the
// outermost scope clears the cache.
MixedPrecision::~MixedPrecision() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, previous_type_);
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

}  // namespace lockstep
