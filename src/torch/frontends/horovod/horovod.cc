#include "lockstep/torch/horovod.h"

#include <torch/serialize.h>

#include <exception>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/settings.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/gradient/join_announcements.h"
#include "src/torch/tensor/object_pickle.h"

namespace lockstep::horovod {
namespace {

std::shared_ptr<ProcessGroup> or_default(std::shared_ptr<ProcessGroup> group) {
  return group ? std::move(group) : default_group();
}

// The group, in which all ranks know by now that they do the same.
std::shared_ptr<ProcessGroup> announced(std::shared_ptr<ProcessGroup> group,
                                        const char* operation) {
  group = or_default(std::move(group));
  JoinAnnouncements::of(group)->announce(HorovodCall::other(operation));
  return group;
}

std::span<const std::byte> bytes_of(std::span<const char> text) {
  return std::as_bytes(text);
}

// The bytes of an object, or the error for which they are missing. A rank with
// an error sends an empty message, so that the others do not wait, and then
// throws it.
struct Packed {
  std::vector<char> bytes;
  std::exception_ptr error;
};

using Pack = std::function<std::vector<char>()>;

Packed packed(const Pack& pack) {
  try {
    return {pack(), nullptr};
  } catch (...) {
    return {{}, std::current_exception()};
  }
}

[[noreturn]] void refuse_empty(const std::string& what, std::size_t rank) {
  throw InvalidArgument(what + " of rank " + std::to_string(rank) +
                        " could not be packed for the other ranks"
                        "\n  next:    read that rank's error");
}

// What `pack` gives on rank `root`, on every rank.
Bytes broadcast_packed(ProcessGroup& group, int root, std::string_view what,
                       const Pack& pack) {
  const Packed own = group.rank() == root ? packed(pack) : Packed{};
  Bytes bytes =
      broadcast_bytes(group, bytes_of(own.bytes), root, {.label = what});
  if (own.error) std::rethrow_exception(own.error);
  if (bytes.empty())
    refuse_empty(std::string(what), static_cast<std::size_t>(root));
  return bytes;
}

}  // namespace

void init(const InitOptions& options) {
  if (!is_initialized()) init_process_group(options);
}

void shutdown() { destroy_process_group(); }

int rank() { return get_rank(); }

int size() { return get_world_size(); }

int local_rank() { return get_node_local_rank(); }

int local_size() {
  const auto said = Settings::from_environment().local_world_size;
  return said ? *said : get_node_local_rank() + 1;  // 0 of 1, or an error
}

void allow_join(std::shared_ptr<ProcessGroup> group) {
  group = or_default(std::move(group));
  JoinAnnouncements::of(group)->allow();
}

int join(std::shared_ptr<ProcessGroup> group) {
  group = or_default(std::move(group));
  return JoinAnnouncements::of(group)->join();
}

void broadcast_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& parameters, int root,
    std::shared_ptr<ProcessGroup> group) {
  broadcast_by_name(*announced(std::move(group), "broadcast_parameters"),
                    parameters, root);
}

void broadcast_parameters(const torch::nn::Module& module, int root,
                          std::shared_ptr<ProcessGroup> group) {
  broadcast_by_name(*announced(std::move(group), "broadcast_parameters"),
                    named_parameters_and_buffers(module), root);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root,
                               std::shared_ptr<ProcessGroup> group) {
  group = announced(std::move(group), "broadcast_optimizer_state");
  const Bytes bytes =
      broadcast_packed(*group, root, "state of the optimizer", [&] {
        std::ostringstream stream;
        torch::serialize::OutputArchive archive;
        optimizer.save(archive);
        archive.save_to(stream);
        const std::string text = std::move(stream).str();
        return std::vector<char>(text.begin(), text.end());
      });
  if (group->rank() == root) return;
  torch::serialize::InputArchive archive;
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  optimizer.state().clear();  // what `root` has none of
  optimizer.load(archive);
}

c10::IValue broadcast_object(const c10::IValue& object, int root,
                             std::shared_ptr<ProcessGroup> group) {
  group = announced(std::move(group), "broadcast_object");
  const Bytes bytes = broadcast_packed(*group, root, "an object",
                                       [&] { return pickle(object); });
  return group->rank() == root ? object : unpickle(bytes);
}

std::vector<c10::IValue> allgather_object(const c10::IValue& object,
                                          std::shared_ptr<ProcessGroup> group) {
  group = announced(std::move(group), "allgather_object");
  const Packed own = packed([&] { return pickle(object); });
  const std::vector<Bytes> all = all_gather_bytes(
      *group, bytes_of(own.bytes), {.label = "an object per rank"});
  if (own.error) std::rethrow_exception(own.error);
  std::vector<c10::IValue> objects;
  for (const Bytes& bytes : all) {
    if (bytes.empty()) refuse_empty("an object", objects.size());
    objects.push_back(unpickle(bytes));
  }
  return objects;
}

}  // namespace lockstep::horovod
