#include "lockstep/torch/horovod.h"

#include <torch/serialize.h>

#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/objects.h"
#include "src/base/settings.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/reducer/join_announcements.h"

namespace lockstep {
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

int said_by_launcher(std::optional<int> number, int alone) {
  if (number) return *number;
  if (size() == 1) return alone;
  throw InvalidArgument(
      "which ranks are on one host is not known: LOCAL_RANK and "
      "LOCAL_WORLD_SIZE are not set\n"
      "  next:    start the ranks with lockstep run, torchrun, mpirun or srun");
}

std::span<const std::byte> bytes_of(std::span<const char> text) {
  return std::as_bytes(text);
}

std::vector<char> text_of(const Bytes& bytes) {
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  return {begin, begin + bytes.size()};
}

}  // namespace

void init(const InitOptions& options) {
  if (!is_initialized()) init_process_group(options);
}

void shutdown() { destroy_process_group(); }

int rank() { return default_group()->rank(); }

int size() { return default_group()->size(); }

int local_rank() {
  return said_by_launcher(Settings::from_environment().local_rank, 0);
}

int local_size() {
  return said_by_launcher(Settings::from_environment().local_world_size, 1);
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
  std::string mine;
  if (group->rank() == root) {
    std::ostringstream stream;
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to(stream);
    mine = std::move(stream).str();
  }
  const Bytes bytes = broadcast_bytes(*group, bytes_of(mine), root,
                                      {.label = "state of the optimizer"});
  if (group->rank() == root) return;
  torch::serialize::InputArchive archive;
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  optimizer.state().clear();  // what `root` has none of
  optimizer.load(archive);
}

c10::IValue broadcast_object(const c10::IValue& object, int root,
                             std::shared_ptr<ProcessGroup> group) {
  group = announced(std::move(group), "broadcast_object");
  if (group->rank() == root) {
    const std::vector<char> pickle = torch::pickle_save(object);
    broadcast_bytes(*group, bytes_of(pickle), root, {.label = "an object"});
    return object;
  }
  return torch::pickle_load(
      text_of(broadcast_bytes(*group, {}, root, {.label = "an object"})));
}

std::vector<c10::IValue> allgather_object(const c10::IValue& object,
                                          std::shared_ptr<ProcessGroup> group) {
  group = announced(std::move(group), "allgather_object");
  const std::vector<char> pickle = torch::pickle_save(object);
  std::vector<c10::IValue> objects;
  for (const Bytes& bytes : all_gather_bytes(*group, bytes_of(pickle),
                                             {.label = "an object a rank"}))
    objects.push_back(torch::pickle_load(text_of(bytes)));
  return objects;
}

}  // namespace lockstep
