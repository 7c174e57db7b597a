// Orders what is given to a device after what several threads or scopes have
// given it on streams of their own.
//
// In backward, autograd runs each node on the stream of its forward: gradients
// of one bucket may come from different ones.
//
// Threads: an object belongs to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace lockstep {

// The one that the calling thread uses on `device`, which is no CPU.
c10::Stream current_stream_on(c10::Device device);

class DeviceStreams {
 public:
  // The calling thread's current stream has been given something. Nothing on
  // the CPU, which has none.
  void add_current(c10::Device device);

  // What the current stream is given from now on begins when what the streams
  // added have been given by now is done; forgets them. Whether there was
  // another than the current one.
  bool hold_up_current(c10::Device device);

  // The reverse: what the streams added are given from now on, also as new
  // owners of memory, begins after what the current one has been given by now.
  void follow_current(c10::Device device);

 private:
  std::vector<c10::Stream> streams_;
};

// Within it the calling thread's current stream on `device` is a new one, not
// the default one, which comes after what the one before was given, and before
// what that is given afterwards. Nothing on the CPU.
class StreamOfItsOwn {
 public:
  explicit StreamOfItsOwn(c10::Device device);
  ~StreamOfItsOwn();
  StreamOfItsOwn(const StreamOfItsOwn&) = delete;
  StreamOfItsOwn& operator=(const StreamOfItsOwn&) = delete;

 private:
  const c10::Device device_;
  std::optional<c10::Stream> before_;
};

// Returns when `device`, which is no CPU, is done with all that it has been
// given, or has failed.
void await_device(c10::Device device) noexcept;

// Memory of `tensors` that is given back from now on is used anew only after
// what the current stream has been given by then, wherever it was allocated.
void keep_for_current_stream(at::TensorList tensors);

}  // namespace lockstep
