#include "lockstep/torch/replicate.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_buffer.h"

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

// One line a tensor.
std::string describe(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters())
    text += c10::str("parameter ", item.key(), " ", item.value().scalar_type(),
                     " ", item.value().sizes(), strides_of(item.value()),
                     item.value().requires_grad() ? "" : " frozen", "\n");
  for (const auto& item : module.named_buffers())
    text += c10::str("buffer ", item.key(), " ", item.value().scalar_type(),
                     " ", item.value().sizes(), "\n");
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

void broadcast_of_one_type(ProcessGroup& group,
                           const std::vector<at::Tensor>& tensors, int root) {
  // Buffers that are written must not overlap; tied weights do.
  std::set<const void*> storages;
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& tensor : tensors) {
    const bool first = storages.insert(tensor.storage().data()).second;
    contiguous.push_back(first ? tensor.contiguous()
                               : tensor.clone(at::MemoryFormat::Contiguous));
  }
  group.broadcast(views(contiguous), root, {.place = "broadcast of tensors"})
      .wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!contiguous[i].is_same(tensors[i])) tensors[i].copy_(contiguous[i]);
    // Peers write behind autograd's back. It must know of parameters; buffers
    // are left out, so that two forward passes may precede one backward pass.
    if (tensors[i].requires_grad())
      tensors[i].unsafeGetTensorImpl()->bump_version();
  }
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

void broadcast_tensors(ProcessGroup& group, at::TensorList tensors, int root) {
  if (group.size() == 1) return;
  const c10::AutoGradMode no_grad(false);
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& tensor : tensors)
    by_type[tensor.scalar_type()].push_back(tensor);
  for (const auto& [type, of_type] : by_type)
    broadcast_of_one_type(group, of_type, root);
}

}  // namespace lockstep
