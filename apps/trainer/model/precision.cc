#include "apps/trainer/model/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

namespace lockstep {

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
