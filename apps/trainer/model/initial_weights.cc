#include "apps/trainer/model/initial_weights.h"

#include <cmath>

namespace lockstep {

// He et al., "Delving Deep into Rectifiers", 2015, with a = √5.
void reset_parameters(at::Tensor weight, at::Tensor bias,
                      const at::Generator& generator) {
  const auto fan_in = static_cast<double>(weight[0].numel());
  const double gain = std::sqrt(2.0 / (1 + 5.0));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(fan_in));
  weight.uniform_(-bound, bound, generator);
  if (!bias.defined()) return;
  bias.uniform_(-1 / std::sqrt(fan_in), 1 / std::sqrt(fan_in), generator);
}

void kaiming_normal_fan_out(at::Tensor weight, const at::Generator& generator) {
  const auto fan_out =
      static_cast<double>(weight.size(0) * weight[0][0].numel());
  weight.normal_(0, std::sqrt(2.0) / std::sqrt(fan_out), generator);
}

}  // namespace lockstep
