#include "lockstep/torch/tensor_collectives.h"

#include <ATen/core/Formatting.h>
#include <c10/util/StringUtil.h>

#include <deque>
#include <exception>
#include <functional>
#include <numeric>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/torch/tensor/object_pickle.h"
#include "src/torch/tensor/tensor_call.h"

namespace lockstep {
namespace {

using Use = Buffer (TensorCall::*)(const at::Tensor&, Argument);

// The name of a list's i-th tensor.
Argument at_index(const char* name, std::size_t i) {
  return {name, static_cast<std::int64_t>(i)};
}

std::vector<Buffer> use_all(TensorCall& call, Use use, at::TensorList tensors,
                            const char* name) {
  std::vector<Buffer> buffers;
  buffers.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0)
      call.check_type(tensors[i], at_index(name, i), tensors[0],
                      at_index(name, 0));
    buffers.push_back((call.*use)(tensors[i], at_index(name, i)));
  }
  return buffers;
}

Bytes pickled(const c10::IValue& object) {
  const std::vector<char> text = pickle(object);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::size_t own_index(const ProcessGroup& group) {
  return static_cast<std::size_t>(group.rank());
}

// Requires lists of equal length: outputs[i] belongs to inputs[i].
void check_lengths(const TensorCall& call, at::TensorList outputs,
                   at::TensorList inputs) {
  if (outputs.size() != inputs.size())
    call.refuse({"outputs"},
                c10::str("has ", outputs.size(), " tensors, expected ",
                         inputs.size(), ", one for each of inputs"),
                "pass lists of the same length");
}

void check_only_at_root(const TensorCall& call, const ProcessGroup& group,
                        at::TensorList list, const char* name) {
  if (!list.empty())
    call.refuse({name},
                c10::str("is not empty on rank ", group.rank(),
                         ", which is not the root"),
                "pass {} on all ranks except the root");
}

// Splits along the first dimension as counts of elements.
class Rows {
 public:
  Rows(const TensorCall& call, const ProcessGroup& group, const char* name,
       const at::Tensor& tensor)
      : call_(call), group_(group), name_(name), tensor_(tensor) {
    if (tensor.dim() == 0)
      call.refuse({name}, "has no dimension that could be split",
                  "pass tensor.view({1})");
  }

  void check_even() const {
    if (tensor_.size(0) % group_.size() != 0)
      call_.refuse(
          {name_},
          c10::str("has shape ", tensor_.sizes(), ", whose ", tensor_.size(0),
                   " rows ", group_.size(), " ranks cannot share evenly"),
          "pass SplitSizes");
  }

  std::vector<std::int64_t> counts(std::vector<std::int64_t> splits) const {
    if (splits.empty()) {
      check_even();
      splits.assign(static_cast<std::size_t>(group_.size()),
                    tensor_.size(0) / group_.size());
    }
    check_splits(splits);
    const auto row = tensor_.sizes().slice(1);
    const std::int64_t elements = std::accumulate(
        row.begin(), row.end(), std::int64_t{1}, std::multiplies<>());
    for (std::int64_t& rows : splits) rows *= elements;
    return splits;
  }

 private:
  void check_splits(const std::vector<std::int64_t>& splits) const {
    const auto refuse = [&](const std::string& why) {
      call_.refuse({name_}, why,
                   "give one number of rows per rank; they must add up to "
                   "the size of the first dimension");
    };
    if (static_cast<int>(splits.size()) != group_.size())
      refuse(c10::str("has ", splits.size(), " split sizes, expected ",
                      group_.size(), ", one per rank"));
    std::int64_t sum = 0;
    for (const std::int64_t rows : splits) {
      if (rows < 0 || rows > tensor_.size(0) - sum)
        refuse(c10::str("has ", tensor_.size(0), " rows, but its split sizes ",
                        "are ", at::IntArrayRef(splits)));
      sum += rows;
    }
    if (sum != tensor_.size(0))
      refuse(c10::str("has ", tensor_.size(0),
                      " rows, but its split sizes add up to ", sum));
  }

  const TensorCall& call_;
  const ProcessGroup& group_;
  const char* const name_;
  const at::Tensor& tensor_;
};

}  // namespace

Work broadcast(ProcessGroup& group, const at::Tensor& tensor, int root,
               const CallOptions& options) {
  TensorCall call(group, "broadcast");
  const Buffer buffer = group.rank() == root ? call.read(tensor, {"tensor"})
                                             : call.write(tensor, {"tensor"});
  return call.finish(group.broadcast(buffer, root, options));
}

Work broadcast_coalesced(ProcessGroup& group, at::TensorList tensors, int root,
                         const CallOptions& options) {
  TensorCall call(group, "broadcast_coalesced");
  const Use use = group.rank() == root ? &TensorCall::read : &TensorCall::write;
  const auto buffers = use_all(call, use, tensors, "tensors");
  return call.finish(group.broadcast(buffers, root, options));
}

Work all_reduce(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op,
                const CallOptions& options) {
  TensorCall call(group, "all_reduce");
  const Buffer buffer = call.update(tensor, {"tensor"});
  return call.finish(group.all_reduce(buffer, op, options));
}

Work all_reduce_coalesced(ProcessGroup& group, at::TensorList tensors,
                          ReduceOp op, const CallOptions& options) {
  TensorCall call(group, "all_reduce_coalesced");
  const auto buffers = use_all(call, &TensorCall::update, tensors, "tensors");
  return call.finish(group.all_reduce(buffers, op, options));
}

Work reduce(ProcessGroup& group, const at::Tensor& tensor, int root,
            ReduceOp op, const CallOptions& options) {
  TensorCall call(group, "reduce");
  const Buffer buffer = group.rank() == root ? call.update(tensor, {"tensor"})
                                             : call.read(tensor, {"tensor"});
  return call.finish(group.reduce(buffer, op, root, options));
}

Work reduce_coalesced(ProcessGroup& group, at::TensorList tensors, int root,
                      ReduceOp op, const CallOptions& options) {
  TensorCall call(group, "reduce_coalesced");
  const Use use =
      group.rank() == root ? &TensorCall::update : &TensorCall::read;
  const auto buffers = use_all(call, use, tensors, "tensors");
  return call.finish(group.reduce(buffers, op, root, options));
}

Work all_gather(ProcessGroup& group, at::TensorList outputs,
                const at::Tensor& input, const CallOptions& options) {
  TensorCall call(group, "all_gather");
  call.check_one_a_rank(outputs, "outputs");
  const std::size_t own = own_index(group);
  call.check_like(outputs[own], at_index("outputs", own), input, {"input"});
  const Buffer in = call.read(input, {"input"});
  const auto out = use_all(call, &TensorCall::write, outputs, "outputs");
  return call.finish(group.all_gather_v(in, out, options));
}

Work all_gather_into_tensor(ProcessGroup& group, const at::Tensor& output,
                            const at::Tensor& input,
                            const CallOptions& options) {
  TensorCall call(group, "all_gather_into_tensor");
  call.check_blocks(output, {"output"}, input, {"input"});
  const Buffer in = call.read(input, {"input"});
  const Buffer out = call.write(output, {"output"});
  return call.finish(group.all_gather(in, out, options));
}

Work all_gather_into_tensor_coalesced(ProcessGroup& group,
                                      at::TensorList outputs,
                                      at::TensorList inputs,
                                      const CallOptions& options) {
  TensorCall call(group, "all_gather_into_tensor_coalesced");
  check_lengths(call, outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    call.check_blocks(outputs[i], at_index("outputs", i), inputs[i],
                      at_index("inputs", i));
  const auto in = use_all(call, &TensorCall::read, inputs, "inputs");
  const auto out = use_all(call, &TensorCall::write, outputs, "outputs");
  return call.finish(group.all_gather(in, out, options));
}

Work gather(ProcessGroup& group, const at::Tensor& input,
            at::TensorList outputs, int root, const CallOptions& options) {
  TensorCall call(group, "gather");
  const Buffer in = call.read(input, {"input"});
  if (group.rank() != root) {
    check_only_at_root(call, group, outputs, "outputs");
    return call.finish(group.gather(in, {}, root, options));
  }
  call.check_one_a_rank(outputs, "outputs");
  for (std::size_t i = 0; i < outputs.size(); ++i)
    call.check_like(outputs[i], at_index("outputs", i), input, {"input"});
  const Buffer out = call.unpack(outputs, "outputs");
  return call.finish(group.gather(in, out, root, options));
}

Work scatter(ProcessGroup& group, const at::Tensor& output,
             at::TensorList inputs, int root, const CallOptions& options) {
  TensorCall call(group, "scatter");
  const Buffer out = call.write(output, {"output"});
  if (group.rank() != root) {
    check_only_at_root(call, group, inputs, "inputs");
    return call.finish(group.scatter({}, out, root, options));
  }
  call.check_one_a_rank(inputs, "inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    call.check_like(inputs[i], at_index("inputs", i), output, {"output"});
  const Buffer in = call.pack(inputs, "inputs");
  return call.finish(group.scatter(in, out, root, options));
}

Work reduce_scatter(ProcessGroup& group, const at::Tensor& output,
                    at::TensorList inputs, ReduceOp op,
                    const CallOptions& options) {
  TensorCall call(group, "reduce_scatter");
  call.check_one_a_rank(inputs, "inputs");
  const std::size_t own = own_index(group);
  call.check_like(inputs[own], at_index("inputs", own), output, {"output"});
  const auto in = use_all(call, &TensorCall::read, inputs, "inputs");
  const Buffer out = call.write(output, {"output"});
  return call.finish(group.reduce_scatter_v(in, out, op, options));
}

Work reduce_scatter_tensor(ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input, ReduceOp op,
                           const CallOptions& options) {
  TensorCall call(group, "reduce_scatter_tensor");
  call.check_blocks(input, {"input"}, output, {"output"});
  const Buffer in = call.read(input, {"input"});
  const Buffer out = call.write(output, {"output"});
  return call.finish(group.reduce_scatter(in, out, op, options));
}

Work reduce_scatter_tensor_coalesced(ProcessGroup& group,
                                     at::TensorList outputs,
                                     at::TensorList inputs, ReduceOp op,
                                     const CallOptions& options) {
  TensorCall call(group, "reduce_scatter_tensor_coalesced");
  check_lengths(call, outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    call.check_blocks(inputs[i], at_index("inputs", i), outputs[i],
                      at_index("outputs", i));
  const auto in = use_all(call, &TensorCall::read, inputs, "inputs");
  const auto out = use_all(call, &TensorCall::write, outputs, "outputs");
  return call.finish(group.reduce_scatter(in, out, op, options));
}

Work all_to_all(ProcessGroup& group, at::TensorList outputs,
                at::TensorList inputs, const CallOptions& options) {
  TensorCall call(group, "all_to_all");
  call.check_one_a_rank(outputs, "outputs");
  call.check_one_a_rank(inputs, "inputs");
  const std::size_t own = own_index(group);
  call.check_like(outputs[own], at_index("outputs", own), inputs[own],
                  at_index("inputs", own));
  const auto in = use_all(call, &TensorCall::read, inputs, "inputs");
  const auto out = use_all(call, &TensorCall::write, outputs, "outputs");
  return call.finish(group.all_to_all_v(in, out, options));
}

Work all_to_all_single(ProcessGroup& group, const at::Tensor& output,
                       const at::Tensor& input, const SplitSizes& splits,
                       const CallOptions& options) {
  TensorCall call(group, "all_to_all_single");
  call.check_type(output, {"output"}, input, {"input"});
  const Rows input_rows(call, group, "input", input);
  const Rows output_rows(call, group, "output", output);
  const bool even = splits.input.empty() && splits.output.empty();
  if (even) {
    call.check_like(output, {"output"}, input, {"input"});
    input_rows.check_even();
  }
  const Buffer in = call.read(input, {"input"});
  const Buffer out = call.write(output, {"output"});
  if (even) return call.finish(group.all_to_all(in, out, options));
  const auto in_blocks = split(in, input_rows.counts(splits.input));
  const auto out_blocks = split(out, output_rows.counts(splits.output));
  return call.finish(group.all_to_all_v(in_blocks, out_blocks, options));
}

Work isend(ProcessGroup& group, const at::Tensor& tensor, int to, int tag,
           const CallOptions& options) {
  TensorCall call(group, "send");
  const Buffer buffer = call.read(tensor, {"tensor"});
  return call.finish(group.isend(buffer, to, tag, options));
}

Work irecv(ProcessGroup& group, const at::Tensor& tensor, int from, int tag,
           const CallOptions& options) {
  TensorCall call(group, "receive");
  const Buffer buffer = call.write(tensor, {"tensor"});
  return call.finish(group.irecv(buffer, from, tag, options));
}

void send(ProcessGroup& group, const at::Tensor& tensor, int to, int tag,
          const CallOptions& options) {
  isend(group, tensor, to, tag, options).wait();
}

int recv(ProcessGroup& group, const at::Tensor& tensor, int from, int tag,
         const CallOptions& options) {
  const Work work = irecv(group, tensor, from, tag, options);
  work.wait();
  return work.source_rank();
}

std::vector<Work> batch_isend_irecv(ProcessGroup& group,
                                    std::span<const TensorMessage> messages,
                                    const CallOptions& options) {
  std::deque<TensorCall> calls;
  std::vector<Message> batch;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [direction, tensor, peer, tag] = messages[i];
    const bool sends = direction == Message::Direction::kSend;
    TensorCall& call = calls.emplace_back(group, "batch_isend_irecv");
    const Buffer buffer = sends ? call.read(tensor, at_index("messages", i))
                                : call.write(tensor, at_index("messages", i));
    batch.push_back({direction, buffer, peer, tag});
  }
  std::vector<Work> works = group.batch_isend_irecv(batch, options);
  for (std::size_t i = 0; i < works.size(); ++i)
    works[i] = calls[i].finish(std::move(works[i]));
  return works;
}

std::vector<c10::IValue> gather_object(ProcessGroup& group,
                                       const c10::IValue& object, int root,
                                       const CallOptions& options) {
  Bytes own;
  std::exception_ptr error;
  try {
    own = pickled(object);
  } catch (...) {
    error = std::current_exception();  // thrown after the other ranks have
                                       // their objects
  }
  const auto all = gather_bytes(group, own, root, options);
  if (error) std::rethrow_exception(error);
  std::vector<c10::IValue> objects;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty())
      throw InvalidArgument(
          c10::str("gather_object: the object of rank ", rank,
                   " could not be pickled\n  next:    read that rank's error"));
    objects.push_back(unpickle(all[rank]));
  }
  return objects;
}

c10::IValue scatter_object_list(ProcessGroup& group,
                                const std::vector<c10::IValue>& objects,
                                int root, const CallOptions& options) {
  std::vector<Bytes> pickles;
  std::exception_ptr error;
  if (group.rank() == root) try {
      for (const c10::IValue& object : objects)
        pickles.push_back(pickled(object));
    } catch (...) {
      error = std::current_exception();
      pickles.clear();  // an error on the other ranks
    }
  try {
    return unpickle(scatter_bytes(group, pickles, root, options));
  } catch (...) {
    if (error) std::rethrow_exception(error);
    throw;
  }
}

}  // namespace lockstep
