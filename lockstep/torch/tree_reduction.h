// Sums whose bits follow from a balanced tree, ((0+1)+(2+3))+…, and from
// nothing else: over lists that one rank has, and over the ranks.
//
// A ProcessGroup adds like that on the CPU. On GPUs NCCL adds in the order of
// its rings, which the number of ranks, the sizes and the links decide. There
// tree_reduce() lets ranks exchange and adds by LibTorch's multi-tensor
// kernels: one addition an element, with one result, whoever makes it.
//
// Threads: an object belongs to one thread at a time; on each device's current
//          stream.
// Errors:  what ProcessGroup's operations throw.
// See docs/design/torch.md, "Logical shards".
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Whether tensors of this kind are added up; all others are compared, and the
// largest number is what they come to.
bool is_summed(const at::Tensor& tensor);

// Adds lists of tensors, as they come, in a balanced tree, and keeps at most
// one sum a level, as a binary counter does: after k lists the levels of k's
// ones are taken.
class TreeSum {
 public:
  // Tensors of the same kinds and shapes, in memory that nobody else has: sums
  // are made in them.
  void add(std::vector<at::Tensor> list);

  // The sum of all lists so far, of which there is one at least; forgets them.
  std::vector<at::Tensor> take();

 private:
  std::vector<std::optional<std::vector<at::Tensor>>> sums_;  // by level
};

// Makes each of `tensors` the sum over the ranks, or the largest: dense ones,
// alike on every rank. On a GPU each rank is sent its n-th part of all ranks'
// tensors, adds them up, and gives all the result: as many bytes as by an
// all_reduce, and room for two copies meanwhile.
void tree_reduce(ProcessGroup& group, at::TensorList tensors);

}  // namespace lockstep
