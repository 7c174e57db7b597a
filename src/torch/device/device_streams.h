// Orders work on a device after work that several threads or scopes have
// started on streams of their own.
//
// In backward, autograd runs each node on the stream of its forward: the
// gradients of one bucket may come from different streams.
//
// Threads: an object belongs to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

namespace lockstep {

// The calling thread's current stream on `device`, which is not a CPU.
c10::Stream current_stream_on(c10::Device device);

// Later work of `later` waits for the present work of `earlier`.
void order_streams(const c10::Stream& earlier, const c10::Stream& later);

class DeviceStreams {
 public:
  // Adds the calling thread's current stream, which has new work. Does nothing
  // on the CPU, which has no streams.
  void add_current(c10::Device device);

  // Later work of the current stream waits for the work that the added streams
  // have now; forgets them. Returns whether one of them was not the current
  // stream.
  bool hold_up_current(c10::Device device);

  // The reverse: later work of the added streams, also as new owners of memory,
  // waits for the work that the current stream has now.
  void follow_current(c10::Device device);

 private:
  std::vector<c10::Stream> streams_;
};

// Returns when `device`, which is not a CPU, has finished all its work, or has
// failed.
void await_device(c10::Device device) noexcept;

// Memory of `tensors` that is freed from now on is reused only after the work
// that the current stream has by then, whichever stream allocated it.
void keep_for_current_stream(at::TensorList tensors);

}  // namespace lockstep
