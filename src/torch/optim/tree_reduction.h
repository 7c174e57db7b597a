// Sums whose bits depend only on a balanced tree, ((0+1)+(2+3))+…: over one
// rank's lists, and over the ranks.
//
// A ProcessGroup adds in this order on the CPU. On GPUs NCCL adds in the order
// of its rings, which depends on the number of ranks, the sizes and the links.
// There tree_reduce() exchanges parts between ranks and adds with LibTorch's
// multi-tensor kernels: one addition per element, with the same result on any
// rank.
//
// Threads: an object belongs to one thread at a time; on each device's current
//          stream.
// Errors:  those of ProcessGroup's operations.
// See docs/design/torch.md, "Logical shards".
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Whether tensors of this type are added up; the others are reduced to their
// maximum.
bool is_summed(const at::Tensor& tensor);

// Adds lists of tensors, as they come, in a balanced tree, and keeps at most
// one sum per level, like a binary counter: after k lists the levels of the one
// bits of k are occupied.
class TreeSum {
 public:
  // Every list has the same types and shapes. add() writes sums into the
  // tensors, so their memory must not be shared.
  void add(std::vector<at::Tensor> list);

  // The sum of all lists so far, at least one; forgets them.
  std::vector<at::Tensor> take();

 private:
  std::vector<std::optional<std::vector<at::Tensor>>> sums_;  // by level
};

// Replaces each of `tensors`, dense and of the same shape on every rank, by the
// sum or maximum over the ranks. On a GPU each rank receives its n-th part of
// all ranks' tensors, adds them up, and sends the result to all: as many bytes
// as an all_reduce, with room for two copies.
void tree_reduce(ProcessGroup& group, at::TensorList tensors);

}  // namespace lockstep
