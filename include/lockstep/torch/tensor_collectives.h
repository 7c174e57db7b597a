// Tensors in collectives: as the buffers of a ProcessGroup's operations, and as
// arguments of functions of their own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// LibTorch's tensors as the Buffers that collectives work on.
//
//     group->all_reduce(lockstep::view(tensor), ReduceOp::kAverage).wait();
//
// A Buffer borrows the tensor's memory: the tensor must stay alive, and must
// not be resized, until the Work of the operation is done.
//
// Errors:  InvalidArgument for tensors that collectives cannot work on: sparse,
//          not contiguous, on an unsupported device or of an unsupported type.
//          The message says how to get a suitable tensor.

// The DataType of `type`'s elements; InvalidArgument for those that training
// does not use, such as complex numbers.
DataType data_type_of(at::ScalarType type);

// The reverse.
at::ScalarType scalar_type_of(DataType type);

// The device of a tensor's memory: the CPU or a GPU. From the first call for a
// GPU on, operations are ordered in LibTorch's current stream there.
Device buffer_device(const at::Tensor& tensor);

// The elements of a contiguous tensor. Tensors share their memory freely, so
// constness does not protect the elements.
Buffer view(const at::Tensor& tensor);

// A list of tensors as the buffers of one operation; they must have one type.
std::vector<Buffer> views(at::TensorList tensors);

// Collectives and messages on tensors: torch.distributed's functions, with its
// names and order of arguments, each on a group.
//
//     lockstep::all_reduce(*group, tensor, ReduceOp::kSum).wait();
//     Work work = lockstep::isend(*group, tensor, 1);   // async_op=True
//
// A tensor may have any strides. One that is not contiguous is staged in a
// copy, and its result is there only when wait() has returned. The caller waits
// for every Work; until then it keeps its tensors alive. Shapes must be right
// before the call: nothing is resized.
//
// Autograd: as in torch.distributed the operations are not part of a graph, and
// tensors that require a gradient, leaves too, are read and written as under
// no_grad. A written tensor counts as modified in place, so that a backward
// pass that needs the old values throws. A list of tensors ("coalesced") is one
// operation: it needs one type, not one shape.
//
// Threads: as ProcessGroup.
// Errors:  those of ProcessGroup; InvalidArgument at once for a tensor that is
//          undefined, sparse, complex or not on the group's device, for shapes
//          and types that do not fit, and for tensors to write to whose
//          elements share memory (expand()).
// Source:  torch.distributed. Unlike there, only members of the group may call.

// Rank `root`'s elements replace every other rank's.
Work broadcast(ProcessGroup& group, const at::Tensor& tensor, int root,
               const CallOptions& options = {});
Work broadcast_coalesced(ProcessGroup& group, at::TensorList tensors, int root,
                         const CallOptions& options = {});

// In place; see ProcessGroup::all_reduce on the order of additions.
Work all_reduce(ProcessGroup& group, const at::Tensor& tensor,
                ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
Work all_reduce_coalesced(ProcessGroup& group, at::TensorList tensors,
                          ReduceOp op = ReduceOp::kSum,
                          const CallOptions& options = {});

// In place on rank `root`; the other ranks' tensors stay as they are.
Work reduce(ProcessGroup& group, const at::Tensor& tensor, int root,
            ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
Work reduce_coalesced(ProcessGroup& group, at::TensorList tensors, int root,
                      ReduceOp op = ReduceOp::kSum,
                      const CallOptions& options = {});

// outputs[r] becomes rank r's `input`. Ranks may bring different shapes, which
// all ranks must know: outputs[r] has rank r's.
Work all_gather(ProcessGroup& group, at::TensorList outputs,
                const at::Tensor& input, const CallOptions& options = {});
// The same into one tensor with size() times as many elements: the inputs in
// rank order, along the first dimension or a new one.
Work all_gather_into_tensor(ProcessGroup& group, const at::Tensor& output,
                            const at::Tensor& input,
                            const CallOptions& options = {});
Work all_gather_into_tensor_coalesced(ProcessGroup& group,
                                      at::TensorList outputs,
                                      at::TensorList inputs,
                                      const CallOptions& options = {});

// The same as all_gather on rank `root`, of one shape on all ranks; elsewhere
// `outputs` is empty.
Work gather(ProcessGroup& group, const at::Tensor& input,
            at::TensorList outputs, int root, const CallOptions& options = {});

// `output` becomes rank `root`'s inputs[rank()]; elsewhere `inputs` is empty.
Work scatter(ProcessGroup& group, const at::Tensor& output,
             at::TensorList inputs, int root, const CallOptions& options = {});

// `output` becomes all ranks' inputs[rank()], combined. inputs[r] has the shape
// of rank r's output.
Work reduce_scatter(ProcessGroup& group, const at::Tensor& output,
                    at::TensorList inputs, ReduceOp op = ReduceOp::kSum,
                    const CallOptions& options = {});
// The same from one tensor, whose r-th part of size() equal ones is rank r's.
Work reduce_scatter_tensor(ProcessGroup& group, const at::Tensor& output,
                           const at::Tensor& input,
                           ReduceOp op = ReduceOp::kSum,
                           const CallOptions& options = {});
Work reduce_scatter_tensor_coalesced(ProcessGroup& group,
                                     at::TensorList outputs,
                                     at::TensorList inputs,
                                     ReduceOp op = ReduceOp::kSum,
                                     const CallOptions& options = {});

// outputs[r] becomes rank r's inputs[rank()], of a shape that both ranks know.
Work all_to_all(ProcessGroup& group, at::TensorList outputs,
                at::TensorList inputs, const CallOptions& options = {});

// The number of rows, along the first dimension, from and to each rank; an
// empty list means equal numbers.
struct SplitSizes {
  std::vector<std::int64_t> output{};
  std::vector<std::int64_t> input{};
};

// The same between two tensors. Either every rank gives split sizes or no rank
// does.
Work all_to_all_single(ProcessGroup& group, const at::Tensor& output,
                       const at::Tensor& input, const SplitSizes& splits = {},
                       const CallOptions& options = {});

// Messages: see ProcessGroup. recv returns the rank that sent.
Work isend(ProcessGroup& group, const at::Tensor& tensor, int to, int tag = 0,
           const CallOptions& options = {});
Work irecv(ProcessGroup& group, const at::Tensor& tensor, int from = kAnySource,
           int tag = 0, const CallOptions& options = {});
void send(ProcessGroup& group, const at::Tensor& tensor, int to, int tag = 0,
          const CallOptions& options = {});
int recv(ProcessGroup& group, const at::Tensor& tensor, int from = kAnySource,
         int tag = 0, const CallOptions& options = {});

// One message of a batch.
struct TensorMessage {
  Message::Direction direction = Message::Direction::kSend;
  at::Tensor tensor{};
  int peer = 0;  // kAnySource in receives
  int tag = 0;
};

// Starts them all, in any order without deadlock; works[i] is messages[i]'s.
std::vector<Work> batch_isend_irecv(ProcessGroup& group,
                                    std::span<const TensorMessage> messages,
                                    const CallOptions& options = {});

// Objects: numbers, strings, tensors, lists and dictionaries of them. They are
// pickled, a view as its own elements alone, and each call returns when this
// rank has its result. All ranks must
// be trusted: unpickling runs no code of the sender's, but the sender decides
// the size. See also broadcast_object() and allgather_object() in
// lockstep/torch/horovod.h.

// Every rank's `object` in the order of ranks, on rank `root`; elsewhere
// nothing.
std::vector<c10::IValue> gather_object(ProcessGroup& group,
                                       const c10::IValue& object, int root = 0,
                                       const CallOptions& options = {});

// Rank `root`'s objects[rank()]; elsewhere `objects` is ignored.
// InvalidArgument on every rank unless there is one object per rank.
c10::IValue scatter_object_list(ProcessGroup& group,
                                const std::vector<c10::IValue>& objects,
                                int root = 0, const CallOptions& options = {});

}  // namespace lockstep
