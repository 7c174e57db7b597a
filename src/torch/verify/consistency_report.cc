#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/torch/consistency.h"
#include "src/torch/verify/consistency_watch.h"

namespace lockstep {

ConsistencyReport::ConsistencyReport(
    std::shared_ptr<const torch::nn::Module> module,
    const ConsistencyReportOptions& options)
    : watch_(std::make_unique<Watch>(std::move(module), options)) {}

ConsistencyReport::~ConsistencyReport() = default;

void ConsistencyReport::data(const at::Tensor& input) { watch_->data(input); }
void ConsistencyReport::outputs(const at::Tensor& output) {
  watch_->outputs(output);
}
void ConsistencyReport::loss(const at::Tensor& loss) { watch_->loss(loss); }
void ConsistencyReport::gradients() { watch_->gradients(); }
void ConsistencyReport::step_done() { watch_->step_done(); }

bool ConsistencyReport::done() const { return watch_->done(); }
const std::optional<ConsistencyVerdict>& ConsistencyReport::verdict() const {
  return watch_->verdict();
}
const std::vector<ConsistencyRow>& ConsistencyReport::rows() const {
  return watch_->rows();
}
std::string ConsistencyReport::take_text() { return watch_->take_text(); }

}  // namespace lockstep
