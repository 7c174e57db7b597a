// A pending send or receive, of any backend.
//
// Threads: one thread at a time, except for `done`.
// Source:  MPI's matching rules (MPI 4.0, section 3.5).
#pragma once

#include <atomic>
#include <string>

#include "lockstep/base/deadline.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

struct PostedMessage {
  explicit PostedMessage(const Operation& given);
  PostedMessage(const PostedMessage&) = delete;
  PostedMessage& operator=(const PostedMessage&) = delete;

  // Of a receive: whether it matches a message from rank `from` with
  // `sent_tag`.
  bool matches(int from, int sent_tag) const {
    return operation.tag == sent_tag &&
           (operation.peer == kAnySource || operation.peer == from);
  }

  Buffer buffer;
  std::string label;
  Operation operation;  // its lists and label are the two above
  Deadline::Clock::time_point begun = Deadline::Clock::now();
  Deadline deadline;

  int source = -1;  // of a matched receive
  std::atomic<bool> done{false};
};

}  // namespace lockstep
