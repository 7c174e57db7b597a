#include "src/torch/frontends/data_parallel/parallel_apply.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/torch/tensor/tensor_lists.h"

namespace lockstep::data_parallel {
namespace {

// Whether users of a copy to `device` follow it in the order of a stream. The
// CPU has no streams: it would read memory before the copy writes it.
bool need_not_wait(at::Device device) { return !device.is_cpu(); }

using Tensors = std::vector<at::Tensor>;

// The replicas' outputs, and the inputs of their graphs.
struct Graphs : torch::CustomClassHolder {
  std::shared_ptr<DeviceThreads> threads;
  std::shared_ptr<ModuleReplicas> replicas;
  std::vector<Tensors> inputs;   // detached, by replica
  std::vector<Tensors> outputs;  // by replica
  std::int64_t dim = 0;          // along which outputs are joined
  std::optional<at::Device> output_device{};

  int count() const { return static_cast<int>(inputs.size()); }
  void release() {
    inputs.clear();
    outputs.clear();
  }
};

// A pass through some replicas' graphs: outputs and their gradients, and the
// tensors that need gradients: a replica's inputs, then its parameters.
class BackwardPass {
 public:
  // `pieces`: the gradients of the replica's outputs; undefined where missing.
  void add(const Graphs& graphs, std::size_t replica, const Tensors& pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& output = graphs.outputs[replica][i];
      if (!pieces[i].defined() || !output.requires_grad()) continue;
      outputs_.push_back(output);
      gradients_.push_back(pieces[i]);
    }
    std::size_t place = 0;
    const auto want = [&](const at::Tensor& source) {
      if (source.requires_grad()) {
        sources_.push_back(source);
        places_.emplace_back(replica, place);
      }
      ++place;
    };
    for (const at::Tensor& input : graphs.inputs[replica]) want(input);
    for (const at::Tensor& parameter :
         graphs.replicas->parameters(static_cast<int>(replica)))
      want(parameter);
  }

  // Writes found[replica][place].
  void run(bool keep_graph, std::vector<Tensors>& found) const {
    if (outputs_.empty() || sources_.empty()) return;
    Tensors gradients =
        torch::autograd::grad(outputs_, sources_, gradients_, keep_graph,
                              /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < places_.size(); ++i)
      found[places_[i].first][places_[i].second] = std::move(gradients[i]);
  }

 private:
  Tensors outputs_, gradients_, sources_;
  std::vector<std::pair<std::size_t, std::size_t>> places_;  // of sources
};

// Gradients by replica, for each of its sources, given pieces[replica]. On CPUs
// autograd runs in the calling thread, so each replica's thread makes its own
// call. On GPUs autograd has one thread per device, and one call uses them all;
// a call from another thread would deadlock with it.
std::vector<Tensors> backward_of(const Graphs& graphs,
                                 const std::vector<Tensors>& pieces,
                                 bool keep_graph) {
  const std::size_t sources =
      graphs.inputs[0].size() + graphs.replicas->parameters().size();
  std::vector<Tensors> found(pieces.size(), Tensors(sources));
  if (graphs.outputs[0][0].is_cpu()) {
    graphs.threads->run(graphs.count(), [&](int replica) {
      const auto index = static_cast<std::size_t>(replica);
      BackwardPass pass;
      pass.add(graphs, index, pieces[index]);
      pass.run(keep_graph, found);
    });
  } else {
    BackwardPass pass;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      pass.add(graphs, i, pieces[i]);
    pass.run(keep_graph, found);
  }
  return found;
}

// gradients[output] of the joined outputs, split as they were joined: by
// replica.
std::vector<Tensors> cut(const Graphs& graphs, const Tensors& gradients) {
  std::vector<Tensors> pieces(graphs.outputs.size(), Tensors(gradients.size()));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    std::int64_t begin = 0;
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      const at::Tensor& output = graphs.outputs[r][i];
      const std::int64_t dim = output.dim() == 0 ? 0 : graphs.dim;
      const std::int64_t length = output.dim() == 0 ? 1 : output.size(dim);
      const at::Tensor piece = gradients[i].narrow(dim, begin, length);
      pieces[r][i] = (output.dim() == 0 ? piece.squeeze(0) : piece)
                         .to(output.device(), need_not_wait(output.device()));
      begin += length;
    }
  }
  return pieces;
}

// Adds in the order of replicas, whichever was ready first. Autograd's results
// may share memory between several parameters' gradients, so only the sum is
// changed in place.
at::Tensor sum_of(const std::vector<Tensors>& parts, std::size_t place,
                  at::Device device) {
  at::Tensor sum;
  bool is_own = false;
  for (const Tensors& part : parts) {
    if (!part[place].defined()) continue;
    const at::Tensor next = part[place].to(device, need_not_wait(device));
    if (!sum.defined()) {
      sum = next;
    } else if (is_own) {
      sum.add_(next);
    } else {
      sum = sum.add(next);
      is_own = true;
    }
  }
  return sum;
}

// Sums of parameters' gradients. On CPUs each slot's thread computes a share of
// them; on GPUs they run on the streams that are current here, which have
// waited for the gradients.
void add_up(const Graphs& graphs, const std::vector<Tensors>& parts,
            Tensors& sums) {
  const std::size_t inputs = graphs.inputs[0].size();
  const auto& parameters = graphs.replicas->parameters();
  const auto add_every = [&](std::size_t first, std::size_t step) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = first; i < parameters.size(); i += step)
      sums[i] = sum_of(parts, inputs + i, parameters[i].device());
  };
  if (!graphs.outputs[0][0].is_cpu()) return add_every(0, 1);
  const int count = graphs.count();
  graphs.threads->run(count, [&](int thread) {
    add_every(static_cast<std::size_t>(thread),
              static_cast<std::size_t>(count));
  });
}

class Joined : public torch::autograd::Function<Joined> {
 public:
  // `connected`: the replicas' inputs in the caller's graph, replica by
  // replica, then the module's parameters.
  static Tensors forward(torch::autograd::AutogradContext* context,
                         const c10::intrusive_ptr<Graphs>& graphs,
                         at::TensorList /*connected*/) {
    Tensors joined, not_differentiable;
    const at::Device device =
        graphs->output_device.value_or(graphs->outputs[0][0].device());
    for (std::size_t i = 0; i < graphs->outputs[0].size(); ++i) {
      Tensors pieces;
      bool differentiable = false;
      for (const Tensors& outputs : graphs->outputs) {
        pieces.push_back(outputs[i].detach());
        differentiable |= outputs[i].requires_grad();
      }
      joined.push_back(gather(pieces, device, graphs->dim));
      if (!differentiable) not_differentiable.push_back(joined.back());
    }
    context->mark_non_differentiable(not_differentiable);
    context->saved_data["graphs"] = c10::IValue::make_capsule(graphs);
    return joined;
  }

  static Tensors backward(torch::autograd::AutogradContext* context,
                          Tensors gradients) {
    if (at::GradMode::is_enabled())
      throw InvalidArgument(
          "DataParallel: backward(create_graph = true) is not possible: the "
          "replicas' graphs are not part of it"
          "\n  next:    compute inner derivatives within the module's "
          "forward()");
    const auto capsule = context->saved_data["graphs"].toCapsule();
    auto& graphs = static_cast<Graphs&>(*capsule);
    if (graphs.inputs.empty())
      throw InvalidArgument(
          "DataParallel: a second backward pass through the same outputs\n"
          "  next:    give the first backward() retain_graph = true");
    return run(graphs, gradients);
  }

 private:
  static Tensors run(Graphs& graphs, const Tensors& gradients) {
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    const auto pieces = cut(graphs, gradients);
    const std::vector<Tensors> parts = backward_of(graphs, pieces, keep);
    Tensors sums(graphs.replicas->parameters().size());
    add_up(graphs, parts, sums);
    Tensors result(1);  // undefined for `graphs`
    const std::size_t inputs = graphs.inputs[0].size();
    for (const Tensors& part : parts)
      result.insert(result.end(), part.begin(),
                    part.begin() + static_cast<std::ptrdiff_t>(inputs));
    result.insert(result.end(), sums.begin(), sums.end());
    if (!keep) graphs.release();
    return result;
  }
};

void check_alike(const std::vector<Tensors>& outputs) {
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    if (outputs[r].empty())
      throw InvalidArgument(
          "DataParallel: the module's output holds no tensor to gather"
          "\n  next:    return tensors, tuples, vectors or maps of them, or "
          "declare for_each_tensor(value, visit) beside the type");
    if (outputs[r].size() != outputs[0].size())
      throw InvalidArgument(
          c10::str("DataParallel: replica ", r, " returned ", outputs[r].size(),
                   " tensors, replica 0 returned ", outputs[0].size(),
                   "\n  next:    return the same number for every part of a "
                   "batch"));
  }
}

void check_dimension(const at::Tensor& tensor, std::int64_t dim,
                     const char* what) {
  if (dim >= -tensor.dim() && dim < tensor.dim()) return;
  throw InvalidArgument(c10::str(
      "DataParallel: a tensor of shape ", tensor.sizes(), " cannot be ", what,
      " along dimension ", dim,
      "\n  next:    give every tensor that dimension, or make the wrapper with "
      "another .dim"));
}

// The caller's streams on GPUs; empty for CPUs.
std::vector<std::optional<c10::Stream>> current_streams(
    const std::vector<Tensors>& inputs) {
  std::vector<std::optional<c10::Stream>> streams;
  for (const Tensors& own : inputs) {
    const at::Device device = own[0].device();
    streams.emplace_back();
    if (!device.is_cpu())
      streams.back() =
          c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  return streams;
}

void forward_on_all(Graphs& graphs, const DevicePass& pass) {
  for (const Tensors& inputs : pass.inputs) {
    Tensors own;
    for (const at::Tensor& input : inputs)
      own.push_back(input.detach().requires_grad_(input.requires_grad()));
    graphs.inputs.push_back(std::move(own));
  }
  graphs.outputs.resize(pass.inputs.size());
  const auto streams = current_streams(graphs.inputs);
  graphs.threads->run(graphs.count(), [&](int replica) {
    const auto index = static_cast<std::size_t>(replica);
    const c10::OptionalStreamGuard guard(streams[index]);
    graphs.outputs[index] = pass.forward(replica, graphs.inputs[index]);
  });
  check_alike(graphs.outputs);
}

}  // namespace

std::vector<at::Tensor> scatter(const at::Tensor& tensor,
                                std::span<const at::Device> devices,
                                std::int64_t dim) {
  if (tensor.dim() == 0)
    throw InvalidArgument(
        "a tensor without dimensions cannot be divided over devices\n"
        "  next:    give it a first dimension, the batch, or pass a number");
  check_dimension(tensor, dim, "divided over devices");
  Tensors pieces = tensor.chunk(static_cast<std::int64_t>(devices.size()), dim);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    pieces[i] = pieces[i].to(devices[i], need_not_wait(devices[i]));
  return pieces;
}

at::Tensor gather(const std::vector<at::Tensor>& pieces, at::Device device,
                  std::int64_t dim) {
  if (pieces[0].dim() == 0)
    dim = 0;
  else
    check_dimension(pieces[0], dim, "joined");
  Tensors rows;
  for (const at::Tensor& piece : pieces)
    rows.push_back((piece.dim() == 0 ? piece.unsqueeze(0) : piece)
                       .to(device, need_not_wait(device)));
  return rows.size() == 1 ? rows[0] : at::cat(rows, dim);
}

std::vector<at::Tensor> parallel_apply(
    const std::shared_ptr<DeviceThreads>& threads,
    const std::shared_ptr<ModuleReplicas>& replicas, const DevicePass& pass,
    std::vector<PassMemory>* memory) {
  auto graphs = c10::make_intrusive<Graphs>();
  graphs->threads = threads;
  graphs->replicas = replicas;
  graphs->dim = pass.dim;
  graphs->output_device = pass.output_device;
  forward_on_all(*graphs, pass);
  if (memory) {
    memory->clear();
    for (std::size_t r = 0; r < graphs->inputs.size(); ++r)
      memory->push_back(
          {bytes_of(graphs->inputs[r]), bytes_of(graphs->outputs[r])});
  }
  Tensors connected;
  for (const Tensors& inputs : pass.inputs)
    connected.insert(connected.end(), inputs.begin(), inputs.end());
  const auto& parameters = replicas->parameters();
  connected.insert(connected.end(), parameters.begin(), parameters.end());
  return Joined::apply(graphs, at::TensorList(connected));
}

}  // namespace lockstep::data_parallel
