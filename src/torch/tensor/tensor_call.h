// One call of an operation on tensors: checks them, stages those whose elements
// are not contiguous, and copies the results back.
//
// The functions of tensor_collectives.h use it: they declare each tensor as
// read, written or updated, start the operation on the Buffers they get in
// return, and pass its Work to finish().
//
// Threads: an object belongs to one thread; any thread may use the Work of
//          finish().
// Errors:  InvalidArgument naming the operation, the argument, its index, and
//          what to pass instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// An argument as messages name it: `outputs[2]`; without an index, `output`.
struct Argument {
  const char* name = "";
  std::int64_t index = -1;
};

class TensorCall {
 public:
  // Throws for a group of which this rank is not a member.
  TensorCall(const ProcessGroup& group, const char* operation);

  // A tensor whose elements the operation reads.
  Buffer read(const at::Tensor& tensor, Argument name);
  // A tensor whose elements the operation replaces, all of them.
  Buffer write(const at::Tensor& tensor, Argument name);
  // A tensor whose elements the operation reads and replaces.
  Buffer update(const at::Tensor& tensor, Argument name);

  // One block of memory for the elements of all of `tensors`, in this order,
  // for operations that need one buffer. pack() fills it, unpack() copies it
  // back to the tensors. They have one shape and type.
  Buffer pack(at::TensorList tensors, const char* name);
  Buffer unpack(at::TensorList tensors, const char* name);

  // Throws InvalidArgument unless `tensor` has `expected`'s shape and type,
  // respectively its type alone.
  void check_like(const at::Tensor& tensor, Argument name,
                  const at::Tensor& expected, Argument expected_name) const;
  void check_type(const at::Tensor& tensor, Argument name,
                  const at::Tensor& expected, Argument expected_name) const;
  // Throws InvalidArgument unless the list has one tensor per rank.
  void check_one_a_rank(at::TensorList tensors, const char* name) const;
  // Throws InvalidArgument unless `blocks` has size() times as many elements as
  // `own`, of its type.
  void check_blocks(const at::Tensor& blocks, Argument blocks_name,
                    const at::Tensor& own, Argument own_name) const;
  [[noreturn]] void refuse(Argument name, const std::string& why,
                           const std::string& next) const;

  // The Work of the call: `started`, with the tensors kept alive; wait() copies
  // the results back.
  Work finish(Work started);

 private:
  // Elements to copy from `from` to `to` when the operation is complete.
  struct WriteBack {
    at::Tensor to, from;
  };
  struct Held;
  class TensorWork;

  void check(const at::Tensor& tensor, Argument name) const;
  void check_writable(const at::Tensor& tensor, Argument name);
  Buffer use(const at::Tensor& contiguous);
  at::Tensor block_for(at::TensorList tensors);

  const ProcessGroup& group_;
  const char* const operation_;
  std::vector<at::Tensor> used_;
  std::vector<WriteBack> write_backs_;
  std::unordered_set<const void*> written_;  // first elements
};

}  // namespace lockstep
