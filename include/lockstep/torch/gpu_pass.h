// Passes on a GPU: captured in a CUDA graph, and out of memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A forward and backward pass whose GPU work is captured once, in a CUDA graph,
// and then launched by one call: for models whose kernels take the host longer
// to launch than the device to run.
//
//     const StreamOfItsOwn stream(device);
//     …                          // model, optimizer
//     CapturedPass pass(group, model.parameters(), [&](at::TensorList inputs) {
//       const at::Tensor logits = model(inputs[0]);
//       const at::Tensor loss = at::cross_entropy_loss(logits, inputs[1]);
//       loss.backward();
//       return std::vector<at::Tensor>{loss.detach(), logits.detach()};
//     });
//     while (…) {
//       optimizer.zero_grad();
//       const auto outputs = pass.run({images, labels});
//       optimizer.step();
//     }
//
// The first passes run as usual: libraries choose kernels, and buckets find
// their order. The next pass is captured, with its collectives. Each later run
// copies its inputs to where the captured pass read them and replays the graph;
// code that runs only on the host is not repeated. So the pass must not wait
// for the device, depend on values there, or change from pass to pass on the
// host. Inputs of other shapes, such as an epoch's last batch, run as usual:
// the graph has the largest shapes that came before it.
//
// Every rank runs the same passes, whose inputs have the same shapes. The graph
// reads the parameters where they lay when it was captured: new values are
// written into them, as by copy_() and load_checkpoint(). A captured pass is
// not among those after which DistributedDataParallel compares replicas.
//
// Threads: single-threaded. One stream, not the default one, is current during
//          the whole life of model and passes: see StreamOfItsOwn.
// Errors:  InvalidArgument for a pass that cannot be captured; it leaves no
//          gradients. InvalidArgument if a parameter has moved to other memory
//          since the capture. Exceptions of the pass.
// Source:  torch.cuda.make_graphed_callables, and PyTorch's notes on capturing
//          DistributedDataParallel.

class DeviceGraph;

// A scope in which the calling thread's current stream on `device` is a new
// one, not the default one. It runs after the earlier work of the stream before
// it, and before that stream's later work. Does nothing on the CPU.
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

class CapturedPass {
 public:
  // Returns the pass's results, detached from its autograd graph.
  using Pass = std::function<std::vector<at::Tensor>(at::TensorList inputs)>;

  // `parameters` get their gradients in `pass`, whose collectives are those of
  // `group`.
  CapturedPass(std::shared_ptr<ProcessGroup> group,
               std::vector<at::Tensor> parameters, Pass pass);

  // Does the pass on `inputs`, which are on one GPU. The parameters have no
  // gradients before (zero_grad()), and have them afterwards. The next run()
  // may overwrite the returned tensors.
  std::vector<at::Tensor> run(at::TensorList inputs);

  // Whether the last run() was a replay.
  bool replayed() const { return replayed_; }

 private:
  bool fits(at::TensorList inputs) const;
  // Whether passes of these shapes are captured from now on.
  bool takes_over(at::TensorList inputs);
  void check_stream_and_gradients(at::TensorList inputs) const;
  CallOptions options(std::string_view label) const;
  void capture(at::Device device);
  void check_places() const;
  void hand_out_gradients();
  void capture_pass(const std::shared_ptr<DeviceGraph>& graph);

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<at::Tensor> parameters_;
  const Pass pass_;
  int passes_ = 0;  // of the shapes to capture
  bool replayed_ = false;
  // The tensors below, which the graph reads and writes, are destroyed before
  // it.
  std::shared_ptr<DeviceGraph> graph_;  // null: nothing is captured yet
  std::vector<at::Tensor> inputs_, gradients_, outputs_;
  // Where the graph reads parameters and writes gradients: tensors that are
  // never handed out, so that no set_data() moves them.
  std::vector<at::Tensor> parameter_places_, gradient_places_;
};

// Reports device memory that runs out, anywhere in a pass or a step, as a
// Lockstep error with the rank, the requested size, and what to try.
//
//     lockstep::tell_out_of_memory(
//         {.group = *group, .device = device, .what = "training",
//          .next = "use smaller batches"},
//         [&] { train(model, batches); });
//
// The group is aborted with that text, unless it has only one rank: no rank can
// finish a step that another has left, and which rank fails first is a matter
// of chance. Where memory runs out in backward(), the wrapper (for example
// DistributedDataParallel) aborts first: then the other ranks get its text, and
// only the failed rank gets this one.
//
// Threads: as `body`; every rank makes its own call.
// Errors:  SystemError (ENOMEM) instead of c10::OutOfMemoryError and similar
//          ones; other exceptions of `body` pass through.

// The work that uses the memory.
struct MemoryUser {
  ProcessGroup& group;
  c10::Device device;     // used where LibTorch does not name it
  std::string what = {};  // "training"
  // How it could need less: "use smaller batches".
  std::string next = {};
};

// Whether `error` reports that memory ran out.
bool is_out_of_memory(const c10::Error& error);

// Rethrows the exception being handled, translated as above.
[[noreturn]] void rethrow_out_of_memory(const MemoryUser& user);

// Calls `body` and returns its result.
template <class Body>
auto tell_out_of_memory(const MemoryUser& user, const Body& body)
    -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    rethrow_out_of_memory(user);
  }
}

}  // namespace lockstep
