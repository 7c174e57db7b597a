// A forward and backward pass whose work on a GPU is captured once, in a CUDA
// graph, and then given to it by one call: for models of which the host takes
// longer to ask for kernels than the device to run them.
//
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
// The first passes are as without it: libraries choose kernels, and buckets
// find their order. The next is captured, with its collectives, and from then
// on inputs are copied to where it read them, and all of it is done again: what
// the host alone does in a pass is not. So nothing in it may wait for the
// device, depend on values there, or change from pass to pass on the host.
// Inputs of other shapes, as an epoch's last batch, take the usual way: what is
// captured has the largest that came before.
//
// Every rank runs the same passes, whose inputs have the same shapes.
//
// Threads: single-threaded. One stream, not the default one, is current in all
//          of the life of model and passes: see StreamOfItsOwn.
// Errors:  InvalidArgument for what cannot be captured; there are no gradients
//          then. What the pass throws.
// Source:  torch.cuda.make_graphed_callables, and PyTorch's notes on capturing
//          DistributedDataParallel.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/device_graph.h"

namespace lockstep {

class CapturedPass {
 public:
  // Returns what is wanted of a pass, detached from its graph of autograd.
  using Pass = std::function<std::vector<at::Tensor>(at::TensorList inputs)>;

  // `parameters` get their gradients in `pass`, whose collectives are those of
  // `group`.
  CapturedPass(std::shared_ptr<ProcessGroup> group,
               std::vector<at::Tensor> parameters, Pass pass);

  // Does the pass on `inputs`, which are on one GPU. The parameters have no
  // gradients before (zero_grad()), and have them afterwards. What is returned
  // may be memory that the next run() overwrites.
  std::vector<at::Tensor> run(at::TensorList inputs);

  // Whether the last run() was a replay.
  bool replayed() const { return replayed_; }

 private:
  bool fits(at::TensorList inputs) const;
  // Whether these are to be captured from now on.
  bool takes_over(at::TensorList inputs);
  void check_stream_and_gradients(at::TensorList inputs) const;
  CallOptions options(std::string_view place) const;
  void capture(at::Device device);
  void capture_pass(const std::shared_ptr<DeviceGraph>& graph);

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<at::Tensor> parameters_;
  const Pass pass_;
  int passes_ = 0;  // of the shapes that are to be captured
  bool replayed_ = false;
  // What the graph reads and writes, which goes before it does.
  std::shared_ptr<DeviceGraph> graph_;  // null: nothing is captured yet
  std::vector<at::Tensor> inputs_, gradients_, outputs_;
};

}  // namespace lockstep
