// Horovod's collectives that return a tensor, and their place in autograd: each
// one's backward pass is a collective of all ranks too.
#include <ATen/core/Formatting.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/same_text.h"
#include "src/torch/frontends/horovod/adasum.h"
#include "src/torch/gradient/join_announcements.h"
#include "src/torch/tensor/tensor_fault.h"

namespace lockstep::horovod {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the backward pass needs of the forward pass.
struct CollectiveOfPass : torch::CustomClassHolder {
  std::shared_ptr<ProcessGroup> group;
  ReduceOp op = ReduceOp::kSum;
  std::int64_t first_row = 0, rows = 0;  // of this rank

  static void save(AutogradContext* context, CollectiveOfPass collective) {
    context->saved_data["collective"] = c10::IValue::make_capsule(
        c10::make_intrusive<CollectiveOfPass>(std::move(collective)));
  }
  static c10::intrusive_ptr<CollectiveOfPass> of(AutogradContext* context) {
    return c10::static_intrusive_pointer_cast<CollectiveOfPass>(
        context->saved_data["collective"].toCapsule());
  }
};

CollectiveOfPass collective_of(std::shared_ptr<ProcessGroup> group,
                               ReduceOp op) {
  CollectiveOfPass collective;
  collective.group = std::move(group);
  collective.op = op;
  return collective;
}

std::shared_ptr<ProcessGroup> given_or_default(
    std::shared_ptr<ProcessGroup> group) {
  return group ? std::move(group) : default_group();
}

// What this rank alone refuses: the others must not hear of it.
void check_dense(const at::Tensor& tensor, const char* operation) {
  if (const auto fault = fault_of_moved(tensor))
    throw InvalidArgument(std::string(operation) + ": the tensor " +
                          fault->why + "\n  next:    " + fault->next +
                          "; a sparse tensor's indices and values can be "
                          "passed to allgather()");
}

void announce_all_reduce(const std::shared_ptr<ProcessGroup>& group,
                         const at::Tensor& tensor, ReduceOp op) {
  check_dense(tensor, "allreduce");
  const auto announcements = JoinAnnouncements::of(group);
  announcements->use_device_of(tensor);
  announcements->announce(HorovodCall::all_reduce(tensor, op));
}

class AllReduced : public torch::autograd::Function<AllReduced> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const std::shared_ptr<ProcessGroup>& group,
                            ReduceOp op) {
    CollectiveOfPass::save(context, collective_of(group, op));
    announce_all_reduce(group, tensor, op);
    const at::Tensor reduced = tensor.clone(at::MemoryFormat::Contiguous);
    all_reduce(*group, reduced, op).wait();
    return reduced;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const auto forward = CollectiveOfPass::of(context);
    if (forward->op != ReduceOp::kSum && forward->op != ReduceOp::kAverage)
      throw InvalidArgument(
          c10::str("allreduce: the result of ", name_of(forward->op),
                   " has no gradient\n"
                   "  next:    pass tensor.detach(), or use ReduceOp::kSum or "
                   "ReduceOp::kAverage"));
    return {allreduce(gradients[0], forward->op, forward->group), at::Tensor(),
            at::Tensor()};
  }
};

// Sizes along the first dimension, by rank.
std::vector<std::int64_t> rows_of_ranks(ProcessGroup& group,
                                        const at::Tensor& tensor) {
  check_same_text(
      group,
      tensor.dim() == 0 ? "a number without a dimension\n"
                        : c10::str(tensor.scalar_type(), " rows of shape ",
                                   tensor.sizes().slice(1), "\n"),
      {.what = "gather tensors that do not fit together",
       .likely = "tensors differ in more than their first dimension",
       .next = "pass tensors of one type and of the same sizes but the first"});
  if (tensor.dim() == 0)
    throw InvalidArgument(
        "allgather: the tensor has no dimension to gather along\n"
        "  next:    pass tensor.view({1})");
  const std::vector<std::int64_t> mine{tensor.size(0)};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(view(mine), view(all), {.label = "rows of allgather"})
      .wait();
  return all;
}

class AllGathered : public torch::autograd::Function<AllGathered> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const std::shared_ptr<ProcessGroup>& group) {
    JoinAnnouncements::of(group)->announce(HorovodCall::other("allgather"));
    const auto rows = rows_of_ranks(*group, tensor);
    const auto mine = rows.begin() + group->rank();
    CollectiveOfPass collective = collective_of(group, ReduceOp::kSum);
    collective.first_row = std::accumulate(rows.begin(), mine, std::int64_t{0});
    collective.rows = *mine;
    CollectiveOfPass::save(context, std::move(collective));
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const at::Tensor gathered = at::empty(shape, tensor.options());
    const auto parts = gathered.split_with_sizes(rows);
    all_gather(*group, parts, tensor).wait();
    return gathered;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const auto forward = CollectiveOfPass::of(context);
    const at::Tensor sum =
        allreduce(gradients[0], ReduceOp::kSum, forward->group);
    return {sum.narrow(0, forward->first_row, forward->rows), at::Tensor()};
  }
};

void check_adasum(ProcessGroup& group, const at::Tensor& tensor) {
  check_same_text(
      group, c10::str(tensor.scalar_type(), " of shape ", tensor.sizes(), "\n"),
      {.what = "combine tensors that do not fit together",
       .likely = "types or shapes are not the same on every rank",
       .next = "pass tensors of one type and shape"});
  check_ranks_of_adasum(group, "adasum");
  if (!tensor.is_floating_point())
    throw InvalidArgument(
        c10::str("adasum: ", tensor.scalar_type(),
                 " is no floating-point type\n", "  next:    ",
                 tensor.is_complex() ? fault_of_type(tensor.scalar_type()).next
                                     : "pass tensor.to(torch::kFloat)"));
}

}  // namespace

at::Tensor adasum(const at::Tensor& tensor,
                  std::shared_ptr<ProcessGroup> group) {
  const c10::NoGradGuard no_grad;
  group = given_or_default(std::move(group));
  check_dense(tensor, "adasum");
  JoinAnnouncements::of(group)->announce(HorovodCall::other("adasum"));
  check_adasum(*group, tensor);
  try {
    const at::Tensor sum = tensor.detach().clone(at::MemoryFormat::Contiguous);
    combine_by_adasum(*group, sum);
    return sum;
  } catch (...) {
    group->abort("rank " + std::to_string(group->rank()) +
                 " left adasum() by an exception; read its log");
    throw;
  }
}

at::Tensor allreduce(const at::Tensor& tensor, ReduceOp op,
                     std::shared_ptr<ProcessGroup> group) {
  check_dense(tensor, "allreduce");
  return AllReduced::apply(tensor, given_or_default(std::move(group)), op);
}

const at::Tensor& allreduce_(const at::Tensor& tensor, ReduceOp op,
                             std::shared_ptr<ProcessGroup> group) {
  group = given_or_default(std::move(group));
  announce_all_reduce(group, tensor, op);
  all_reduce(*group, tensor, op).wait();
  return tensor;
}

at::Tensor allgather(const at::Tensor& tensor,
                     std::shared_ptr<ProcessGroup> group) {
  check_dense(tensor, "allgather");
  return AllGathered::apply(tensor, given_or_default(std::move(group)));
}

}  // namespace lockstep::horovod
