#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cerrno>
#include <optional>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/torch/gpu_pass.h"
#include "src/base/first_line.h"

namespace lockstep {
namespace {

std::optional<std::string> between(const std::string& text,
                                   std::string_view before,
                                   std::string_view after) {
  const std::size_t found = text.find(before);
  if (found == std::string::npos) return std::nullopt;
  const std::size_t begin = found + before.size();
  const std::size_t end = text.find(after, begin);
  if (end == std::string::npos) return std::nullopt;
  return text.substr(begin, end - begin);
}

// The amounts, if LibTorch names them: "CUDA out of memory. Tried to allocate
// 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.50 GiB is free.
// …"
std::string amounts(const std::string& said) {
  const auto asked = between(said, "Tried to allocate ", ". ");
  if (!asked) return "";
  std::string line = "\n  asked:   " + *asked + " more";
  const auto total = between(said, "has a total capacity of ", " of which ");
  const auto free = between(said, " of which ", " is free");
  if (total && free) line += ", where " + *free + " of " + *total + " is free";
  return line;
}

std::string text_of(const MemoryUser& user, const std::string& said) {
  const auto number = between(said, "GPU ", " has a total capacity of ");
  const std::string device =
      number ? c10::DeviceTypeName(user.device.type(), /*lower_case=*/true) +
                   ":" + *number
             : user.device.str();
  return c10::str(
      user.what, " ran out of memory on rank ", user.group.rank(), " of ",
      user.group.size(), " (group \"", user.group.name(), "\"), on ", device,
      amounts(said),
      "\n  likely:  the batch or the model is too large for this GPU, or "
      "other processes use its memory"
      "\n  next:    ",
      user.next,
      "; `lockstep status` shows other processes on the GPU\n  said:    ",
      first_line(said));
}

void tell_others(ProcessGroup& group, const SystemError& error) noexcept {
  if (group.size() > 1) group.abort(error.what());
}

}  // namespace

// LibTorch's allocator throws a class of its own. Failures of CUDA and its
// libraries are recognised by their text.
bool is_out_of_memory(const c10::Error& error) {
  const std::string_view text = error.msg();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         text.find("out of memory") != std::string_view::npos ||
         text.find("STATUS_ALLOC_FAILED") != std::string_view::npos;
}

void rethrow_out_of_memory(const MemoryUser& user) {
  try {
    throw;
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    const SystemError ours(text_of(user, error.msg()), ENOMEM);
    tell_others(user.group, ours);
    throw ours;
  } catch (const SystemError& error) {
    // For memory that the group itself allocates.
    if (error.error_number() == ENOMEM) tell_others(user.group, error);
    throw;
  }
}

}  // namespace lockstep
