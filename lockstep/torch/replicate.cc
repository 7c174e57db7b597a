#include "lockstep/torch/replicate.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/distinct_parameters.h"
#include "lockstep/torch/tensor_buffer.h"
#include "lockstep/torch/tensor_lists.h"
#include "lockstep/torch/tensor_memory.h"

namespace lockstep {
namespace {

// Strides of dimensions of size 1 mean nothing, and say so to nobody.
std::string strides_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return " sparse";
  if (tensor.is_contiguous()) return "";
  std::string text = " strides";
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    text += tensor.size(i) == 1 ? " *" : " " + std::to_string(tensor.stride(i));
  return text;
}

std::string other_device(const at::Tensor& tensor) {
  // Of which each rank may have another.
  return tensor.is_cpu() ? "" : c10::str(" on ", tensor.device().type());
}

std::string type_of_gradient(const at::Tensor& parameter) {
  const at::ScalarType type = gradient_type(parameter);
  return type == parameter.scalar_type() ? "" : c10::str(" gradients ", type);
}

// One line a tensor.
std::string describe(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters())
    text += c10::str("parameter ", item.key(), " ", item.value().scalar_type(),
                     " ", item.value().sizes(), strides_of(item.value()),
                     other_device(item.value()), type_of_gradient(item.value()),
                     item.value().requires_grad() ? "" : " frozen", "\n");
  for (const auto& item : module.named_buffers())
    text +=
        c10::str("buffer ", item.key(), " ", item.value().scalar_type(), " ",
                 item.value().sizes(), other_device(item.value()), "\n");
  return text;
}

std::int64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : text) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3;
  }
  return static_cast<std::int64_t>(hash);
}

std::vector<std::string> gather_texts(ProcessGroup& group,
                                      const std::string& text,
                                      std::size_t longest) {
  std::vector<std::int8_t> mine(longest, 0);
  std::ranges::copy(text, mine.begin());
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::int8_t> all(longest * size);
  group.all_gather(view(mine), view(all), {.place = "descriptions of models"})
      .wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto* begin = reinterpret_cast<const char*>(&all[rank * longest]);
    texts.emplace_back(begin, std::find(begin, begin + longest, '\0'));
  }
  return texts;
}

// The first line in which `a` and `b` differ, as `a` has it.
std::string first_difference(std::string_view a, std::string_view b) {
  while (!a.empty()) {
    const auto line = a.substr(0, a.find('\n') + 1);
    if (!b.starts_with(line))
      return std::string(line.substr(0, line.size() - 1));
    a.remove_prefix(line.size());
    b.remove_prefix(line.size());
  }
  return "nothing there";
}

[[noreturn]] void throw_different(const ProcessGroup& group,
                                  std::span<const std::string> texts) {
  std::string differing;
  std::size_t first = 0;
  for (std::size_t rank = texts.size(); rank-- > 1;) {
    if (texts[rank] == texts[0]) continue;
    first = rank;
    differing =
        std::to_string(rank) + (differing.empty() ? "" : ", ") + differing;
  }
  throw Mismatch(c10::str(
      "the ranks of group \"", group.name(),
      "\" hold different models (seen on rank ", group.rank(), " of ",
      group.size(), ")\n  rank 0:  ", first_difference(texts[0], texts[first]),
      "\n  rank ", first, ":  ", first_difference(texts[first], texts[0]),
      "\n  differ:  rank 0 and rank ", differing,
      "\n  likely:  the module is built from options that are not the same on "
      "every rank"
      "\n  next:    build the same module everywhere; only contents may "
      "differ, rank 0's are taken"));
}

[[noreturn]] void refuse_sparse(const std::string& what) {
  throw InvalidArgument(what +
                        " cannot be copied to all ranks: it is sparse"
                        "\n  next:    keep it out of the module, or make it "
                        "dense: tensor.to_dense()");
}

void check_dense(const char* kind,
                 const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  for (const auto& item : tensors)
    if (item.value().defined() && item.value().layout() != at::kStrided)
      refuse_sparse(std::string(kind) + " " + item.key());
}

// For an operation that moves elements and does not compute with them: of a
// type that collectives do not know, as bytes.
std::vector<Buffer> views_to_move(const std::vector<at::Tensor>& contiguous) {
  const at::ScalarType type = contiguous.front().scalar_type();
  const bool is_known = std::ranges::any_of(
      kAllDataTypes,
      [type](DataType known) { return scalar_type_of(known) == type; });
  if (is_known) return views(contiguous);
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : contiguous)
    bytes.push_back(tensor.flatten().view(at::kByte));
  return views(bytes);
}

using Collective = std::function<Work(const std::vector<at::Tensor>&)>;

void run_on_list(const std::vector<at::Tensor>& tensors,
                 const Collective& collective) {
  // Buffers that are written must not overlap; tied weights do.
  std::set<const void*> storages;
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() != at::kStrided) refuse_sparse("a tensor");
    const bool first = storages.insert(tensor.storage().data()).second;
    contiguous.push_back(first ? resolved(tensor).contiguous()
                               : tensor.clone(at::MemoryFormat::Contiguous));
  }
  collective(contiguous).wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!contiguous[i].is_same(tensors[i])) tensors[i].copy_(contiguous[i]);
    // Peers write behind autograd's back. It must know of parameters; buffers
    // are left out, so that two forward passes may precede one backward pass.
    if (tensors[i].requires_grad())
      tensors[i].unsafeGetTensorImpl()->bump_version();
  }
}

// In place, one operation a device and data type.
void run_on(at::TensorList tensors, const Collective& collective) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& list : by_device_and_type(tensors))
    run_on_list(list, collective);
}

}  // namespace

void check_same_model(ProcessGroup& group, const torch::nn::Module& module) {
  if (group.size() == 1) return;
  const std::string text = describe(module);
  const std::vector<std::int64_t> mine{hash_of(text),
                                       static_cast<std::int64_t>(text.size())};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(group.size()));
  group.all_gather(view(mine), view(all), {.place = "shapes of models"}).wait();
  std::int64_t longest = 0;
  bool same = true;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    same = same && all[i] == all[0] && all[i + 1] == all[1];
    longest = std::max(longest, all[i + 1]);
  }
  if (same) return;
  throw_different(group,
                  gather_texts(group, text, static_cast<std::size_t>(longest)));
}

void check_one_device(const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    const auto& first = parameters.front();
    if (item.value().device() == first.value().device()) continue;
    throw InvalidArgument(c10::str(
        "the module's parameters are on two devices: ", first.key(), " is on ",
        first.value().device(), ", ", item.key(), " is on ",
        item.value().device(),
        "\n  next:    have the whole module on one device before it is "
        "wrapped: module->to(device)"));
  }
}

void check_dense(const torch::nn::Module& module) {
  check_dense("parameter", module.named_parameters());
  check_dense("buffer", module.named_buffers());
}

std::vector<at::Tensor> parameters_and_buffers(
    const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = distinct_parameters(module);
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

void broadcast_tensors(ProcessGroup& group, at::TensorList tensors, int root) {
  if (group.size() > 1) broadcast_even_alone(group, tensors, root);
}

void broadcast_even_alone(ProcessGroup& group, at::TensorList tensors,
                          int root) {
  run_on(tensors, [&](const std::vector<at::Tensor>& list) {
    return group.broadcast(views_to_move(list), root,
                           {.place = "broadcast of tensors"});
  });
}

void average_tensors(ProcessGroup& group, at::TensorList tensors) {
  if (group.size() == 1) return;
  run_on(tensors, [&](const std::vector<at::Tensor>& list) {
    return group.all_reduce(views(list), ReduceOp::kAverage,
                            {.place = "average of tensors"});
  });
}

}  // namespace lockstep
