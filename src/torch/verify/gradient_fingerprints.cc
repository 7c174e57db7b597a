#include "src/torch/verify/gradient_fingerprints.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

namespace lockstep {

// Hooks refer to it weakly.
struct GradientFingerprints::State {
  State(const std::vector<at::Tensor>& of, std::int64_t elements)
      : parameters(of),
        fingerprints(of.size()),
        unreduced(of.size()),
        heads(of.size()),
        kept_elements(elements) {}

  void arrived(std::size_t i, const at::Tensor& gradient) {
    const at::NoGradGuard no_grad;
    const at::Tensor& before = parameters[i].grad();
    unreduced[i] =
        fingerprint_of(before.defined() ? before + gradient : gradient);
    const Fingerprint latest = fingerprint_of(gradient);
    if (fingerprints[i] == fingerprint_of(at::Tensor())) {
      fingerprints[i] = latest;
    } else {
      const Fingerprint both[] = {fingerprints[i], latest};
      fingerprints[i] = fingerprint_of(std::span(both));
    }
    if (kept_elements == 0) return;
    const at::Tensor flat = gradient.detach().to_dense().flatten();
    const at::Tensor head =
        flat.narrow(0, 0, std::min(kept_elements, flat.numel()));
    heads[i] = heads[i].defined() ? heads[i] + head : head.clone();
  }

  std::vector<at::Tensor> parameters;
  std::vector<Fingerprint> fingerprints, unreduced;
  std::vector<at::Tensor> heads;
  std::int64_t kept_elements;
};

GradientFingerprints::GradientFingerprints(
    const std::vector<at::Tensor>& parameters, std::int64_t kept_elements)
    : state_(std::make_shared<State>(parameters, kept_elements)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::weak_ptr<State> weak = state_;
    const auto arrived = [weak, i](const at::Tensor& gradient) {
      const auto state = weak.lock();
      if (state && gradient.defined()) state->arrived(i, gradient);
    };
    hooks_.push_back(parameters[i].register_hook(arrived));
  }
}

GradientFingerprints::~GradientFingerprints() {
  for (std::size_t i = 0; i < hooks_.size(); ++i)
    state_->parameters[i].remove_hook(hooks_[i]);
}

const std::vector<Fingerprint>& GradientFingerprints::fingerprints() const {
  return state_->fingerprints;
}

const std::vector<Fingerprint>& GradientFingerprints::unreduced() const {
  return state_->unreduced;
}

at::Tensor GradientFingerprints::head(std::size_t i) const {
  return state_->heads[i];
}

void GradientFingerprints::clear() {
  std::ranges::fill(state_->fingerprints, fingerprint_of(at::Tensor()));
  std::ranges::fill(state_->unreduced, fingerprint_of(at::Tensor()));
  std::ranges::fill(state_->heads, at::Tensor());
}

}  // namespace lockstep
