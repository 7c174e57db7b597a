// The tasks that streams of a fake GPU are given while they are captured, for
// later launches: a CUDA graph.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu_operation.h"

namespace lockstep {

struct FakeComm;

// One command that was given to a stream. Streams are numbered in the order in
// which they joined the capture, from 0, the first.
struct FakeCommand {
  std::size_t stream = 0;
  FakeTask task{};  // unless there are calls
  std::weak_ptr<FakeComm> comm{};
  std::vector<FakeCall> calls{};  // that start together
};

class FakeCapture : public std::enable_shared_from_this<FakeCapture> {
 public:
  explicit FakeCapture(std::uint64_t id) : id_(id) {}

  std::uint64_t id() const { return id_; }
  // Whether streams are in the capture.
  bool is_open() const { return open_; }
  // Adds `stream` to the capture.
  void take(const std::shared_ptr<FakeStream>& stream);

  void add(FakeStream& stream, FakeTask task);
  void add_calls(const std::shared_ptr<FakeComm>& comm,
                 const std::vector<FakeCall>& calls);

  // Invalidates the capture, for this reason.
  void spoil(const std::string& why);
  const std::string& spoilt() const { return spoilt_; }

  // Releases the streams. The first stream must have waited for all others,
  // otherwise the capture is invalidated.
  void end();

  const std::vector<FakeCommand>& commands() const { return commands_; }
  std::size_t stream_count() const { return streams_.size(); }
  bool uses(const FakeComm& comm) const;
  std::size_t number_of(const FakeStream& stream) const;

 private:
  const std::uint64_t id_;
  bool open_ = true;
  std::string spoilt_;
  std::vector<std::shared_ptr<FakeStream>> streams_;
  std::vector<VectorClock> known_;  // by stream, of all its commands
  std::vector<FakeCommand> commands_;
};

}  // namespace lockstep
