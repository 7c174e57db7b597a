#include "src/comm/nccl/launch_queue.h"

#include <algorithm>
#include <utility>

#include "src/comm/nccl/nccl_calls.h"

namespace lockstep {

void LaunchQueue::advance() {
  note_capture();
  while (line_ && line_->is_ready() && !queue_.empty()) {
    if (first_given_) {
      if (!queue_.front()->launched) note_launch(*queue_.front());
      if (queue_.front()->capture == 0) under_way_.push_back(queue_.front());
      queue_.pop_front();
      first_given_ = false;
      continue;
    }
    const auto next = std::ranges::find_if(
        queue_, [](const auto& pending) { return !pending->behind_capture; });
    if (next == queue_.end() || ((*next)->capture == 0 && is_full())) return;
    std::rotate(queue_.begin(), next, next + 1);
    give(*queue_.front());
    first_given_ = true;
  }
}

// Marks operations outside of the line's capture, which must not join it.
void LaunchQueue::note_capture() {
  if (!line_ || queue_.empty()) return;
  if (capture_ != 0 && !queue_.front()->gpu.is_capturing(line_->stream()))
    capture_ = 0;
  for (const auto& pending : queue_)
    pending->behind_capture = capture_ != 0 && pending->capture != capture_;
}

bool LaunchQueue::is_full() {
  while (!under_way_.empty() && under_way_.front().expired())
    under_way_.pop_front();
  return under_way_.size() >= kMostUnderWay;
}

// The operation begins after earlier work of the caller's stream.
void LaunchQueue::give(NcclOperation& pending) {
  if (memory_) memory_->register_new(pending.gpu, *line_);
  pending.begins.hold_up(line_->stream());
  capture_ = pending.capture;
  note_capture();
  if (pending.graph) {
    pending.graph->launch(line_->stream());
    // At once: a thread that gets an error next must wait for its end too.
    note_launch(pending);
  } else if (is_point_to_point(pending.operation.kind)) {
    issue_message(pending.operation, *line_);
  } else {
    issue_collective(pending.operation, rank_, size_, *line_);
  }
}

void LaunchQueue::note_launch(NcclOperation& pending) {
  pending.ends.record(line_->stream());
  pending.launched = true;
}

}  // namespace lockstep
