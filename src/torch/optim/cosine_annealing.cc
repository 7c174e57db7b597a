#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"
#include "src/planning/rate_curves.h"

namespace lockstep {
namespace {

const CosineAnnealingOptions& checked(const CosineAnnealingOptions& options) {
  if (options.t_max >= 1 && std::isfinite(options.eta_min) &&
      options.last_epoch >= 0 && options.warmup >= 0 &&
      options.start_factor >= 0 && options.start_factor <= 1)
    return options;
  throw InvalidArgument(
      "CosineAnnealingLR: t_max is " + std::to_string(options.t_max) +
      ", eta_min " + std::to_string(options.eta_min) + ", last_epoch " +
      std::to_string(options.last_epoch) + ", warmup " +
      std::to_string(options.warmup) + ", start_factor " +
      std::to_string(options.start_factor) +
      "\n  next:    use a t_max of at least 1, a finite eta_min, a last_epoch "
      "and a warmup of at least 0, and a start_factor from 0 to 1");
}

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer,
                                     const CosineAnnealingOptions& options)
    : LRScheduler(optimizer),
      options_(checked(options)),
      first_rates_(get_current_lrs()) {
  if (options.last_epoch == 0 && options.warmup == 0) return;
  const auto rates = rates_after(options.last_epoch);
  for (std::size_t i = 0; i < rates.size(); ++i)
    optimizer.param_groups()[i].options().set_lr(rates[i]);
}

std::vector<double> CosineAnnealingLR::get_lrs() {
  return rates_after(last_epoch() + 1);
}

std::vector<double> CosineAnnealingLR::rates_after(std::int64_t steps) const {
  std::vector<double> rates;
  if (steps < options_.warmup) {
    const double factor =
        linear_warm_up(options_.start_factor, steps, options_.warmup);
    for (const double first : first_rates_) rates.push_back(first * factor);
    return rates;
  }
  const double progress = static_cast<double>(steps - options_.warmup) /
                          static_cast<double>(options_.t_max);
  for (const double first : first_rates_)
    rates.push_back(options_.eta_min +
                    (first - options_.eta_min) * half_cosine(progress));
  return rates;
}

}  // namespace lockstep
