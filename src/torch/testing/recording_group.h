// A group whose operations are recorded.
//
// Threads: like RecordingBackend.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/torch/testing/recording_backend.h"

namespace lockstep {

class RecordingGroup {
 public:
  explicit RecordingGroup(const std::shared_ptr<ProcessGroup>& group)
      : RecordingGroup(group, std::make_shared<RecordingBackend>(group)) {}
  // With a backend of a test's own, which forwards to `group`.
  RecordingGroup(const std::shared_ptr<ProcessGroup>& group,
                 std::shared_ptr<RecordingBackend> backend)
      : backend_(std::move(backend)),
        group_(std::make_shared<ProcessGroup>(std::make_unique<GroupCore>(
            backend_, GroupIdentity{.name = "recorded",
                                    .rank = group->rank(),
                                    .size = group->size()}))) {}

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  void record(const std::string& event) const { backend_->record(event); }
  // The events since the last call.
  std::vector<std::string> take_events() const {
    return backend_->take_events();
  }

 private:
  std::shared_ptr<RecordingBackend> backend_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace lockstep
