// A backend that forwards everything to another group, and records the calls.
//
// Threads: like Backend.
// Errors:  those of the other group.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/group/group_core.h"

namespace lockstep {

class RecordingBackend : public Backend {
 public:
  explicit RecordingBackend(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  std::string_view name() const override { return "recording"; }
  bool supports(const Operation&) const override { return true; }
  std::shared_ptr<Heap> heap() const override { return group_->core().heap(); }
  bool reduces_in_place() const override {
    return group_->core().reduces_in_place();
  }
  void abort(std::string_view reason) noexcept override {
    group_->abort(reason);
  }
  void leave() noexcept override { group_->leave(); }
  Work start(const Operation& operation) override {
    record(std::string(name_of(operation.kind)));
    if (operation.kind == OperationKind::kBroadcast)
      return group_->broadcast(operation.outputs, operation.root);
    if (operation.kind == OperationKind::kAllReduce)
      return group_->all_reduce(operation.outputs, operation.reduction);
    if (operation.kind == OperationKind::kAllGather)
      return group_->all_gather(operation.inputs, operation.outputs);
    throw std::logic_error("not expected of what is tested");
  }

  void record(const std::string& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  // The events since the last call.
  std::vector<std::string> take_events() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::mutex mutex_;
  std::vector<std::string> events_;
};

}  // namespace lockstep
