#include "src/comm/group/group_core.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/operation/captured_graph.h"
#include "src/comm/operation/current_stream.h"
#include "src/comm/operation/validation.h"

namespace lockstep {
namespace {

std::shared_ptr<GroupRecorder> make_recorder(
    const std::shared_ptr<World>& world, const GroupIdentity& identity,
    const std::shared_ptr<Backend>& backend) {
  if (!world || !backend) return nullptr;
  return std::make_shared<GroupRecorder>(world->recorder(), identity, backend);
}

}  // namespace

GroupCore::GroupCore(std::shared_ptr<Backend> backend, GroupIdentity identity,
                     std::chrono::nanoseconds timeout,
                     std::shared_ptr<World> world)
    : identity_(std::move(identity)),
      timeout_(timeout),
      world_(std::move(world)),
      recorder_(make_recorder(world_, identity_, backend)),
      backend_(std::move(backend)) {
  if (backend_) abortable_.push_back(backend_);
}

GroupCore::~GroupCore() {
  if (recorder_) recorder_->leave();
}

// A forked child shares the rank's group memory, where peers would take the
// child's calls for the rank's.
void GroupCore::check_process() const {
  if (!process_.is_child()) return;
  throw InvalidArgument(fmt::format(
      "this process was forked from rank {} of group \"{}\", and cannot act "
      "for it\n  next:    call the group in the process that made it, or make "
      "another group here",
      identity_.rank, identity_.name));
}

void GroupCore::refuse_call() const {
  if (!is_member())
    throw InvalidArgument(fmt::format(
        "this rank is not a member of group \"{}\"\n  next:    check "
        "is_member() before calling into a group made by new_group()",
        identity_.name));
  throw InvalidArgument(fmt::format(
      "group \"{}\" was destroyed on rank {}\n  next:    make a new group, or "
      "destroy this one after its last use",
      identity_.name, identity_.rank));
}

std::shared_ptr<Backend> GroupCore::member() const {
  check_process();
  MutexLock lock(start_order_);
  if (!backend_) refuse_call();
  return backend_;
}

std::string GroupCore::backend_name() const {
  if (process_.is_child()) return "none";
  MutexLock lock(start_order_);
  return backend_ ? std::string(backend_->name()) : "none";
}

void GroupCore::count_reduced_pass() {
  if (world_ && !process_.is_child()) world_->recorder()->count_reduced_pass();
}

void GroupCore::abort(std::string_view reason) noexcept {
  if (process_.is_child()) return;
  std::vector<std::shared_ptr<Backend>> backends;
  {
    MutexLock lock(abort_mutex_);
    backends = abortable_;
    if (!aborted_) aborted_ = reason;
  }
  for (const auto& backend : backends) backend->abort(reason);
}

std::shared_ptr<void> GroupCore::finish_before_leaving(
    std::function<void()> finish) {
  auto kept = std::make_shared<std::function<void()>>(std::move(finish));
  MutexLock lock(abort_mutex_);
  std::erase_if(finishes_, [](const auto& known) { return known.expired(); });
  finishes_.push_back(kept);
  return kept;
}

// The work of an aborted group fails when its backends leave.
void GroupCore::run_finishes() noexcept {
  std::vector<std::weak_ptr<std::function<void()>>> finishes;
  {
    MutexLock lock(abort_mutex_);
    if (aborted_) return;
    finishes.swap(finishes_);
  }
  for (const auto& known : finishes) try {
      if (const auto finish = known.lock()) (*finish)();
    } catch (const std::exception& error) {
      log(LogLevel::kError,
          fmt::format("rank {} leaves group \"{}\" without waiting for its "
                      "own work: {}",
                      identity_.rank, identity_.name, error.what()));
    }
}

// A thread of the parent may have held any lock when the child was forked.
void GroupCore::leave() noexcept {
  if (process_.is_child()) return;
  run_finishes();
  if (recorder_) recorder_->leave();
  // The backends leave, and are destroyed, after the locks are released.
  std::shared_ptr<Backend> last, last_of_group, last_of_device;
  std::vector<std::shared_ptr<Backend>> abortable;
  {
    MutexLock lock(start_order_);
    last.swap(backend_);
    last_of_group.swap(of_group_);
  }
  {
    MutexLock lock(abort_mutex_);
    left_ = true;
    abortable.swap(abortable_);
    last_of_device.swap(device_backend_);
  }
  // The device's backend first, which was made from the CPU's.
  for (; !abortable.empty(); abortable.pop_back()) abortable.back()->leave();
  // After the group, which names its operations in flight while its connections
  // exist.
  duplicates_.leave();
}

std::shared_ptr<ProcessGroup> GroupCore::duplicate() {
  const auto backend = member();
  if (!backend->can_duplicate()) return nullptr;
  std::shared_ptr<Backend> of_group;
  {
    MutexLock lock(start_order_);
    of_group = of_group_ ? of_group_ : backend;
  }
  return duplicates_.take(*this, [&](int number) {
    GroupIdentity identity = identity_;
    identity.part = fmt::format("{}{})", kDuplicatePart, number);
    auto made = std::make_unique<GroupCore>(
        backend->duplicate(identity, number), identity, timeout_, world_);
    made->duplicates_.share(duplicates_);
    {
      MutexLock lock(made->start_order_);
      made->of_group_ = of_group;
    }
    return std::make_shared<ProcessGroup>(std::move(made));
  });
}

void GroupCore::set_device_backend(MakeDeviceBackend make,
                                   AllocateOnDevice allocate) {
  MutexLock making(making_);
  make_device_backend_ = std::move(make);
  MutexLock lock(abort_mutex_);
  allocate_on_device_ = std::move(allocate);
}

std::shared_ptr<std::byte> GroupCore::allocate_on(Device device,
                                                  std::size_t bytes) {
  const auto backend = member();
  if (device.kind == DeviceKind::kCpu) return backend->allocate(bytes);
  AllocateOnDevice allocate;
  {
    MutexLock lock(abort_mutex_);
    allocate = allocate_on_device_;
  }
  if (allocate) return allocate(device, bytes);
  throw InvalidArgument(fmt::format(
      "allocate_on: group \"{}\" has no memory on GPU {}, because it was made "
      "by hand with the backend \"{}\" alone\n  next:    use make_group() or "
      "init_process_group(), or memory of the CPU",
      identity_.name, device.index, backend->name()));
}

std::shared_ptr<Backend> GroupCore::device_backend(Device device) {
  MutexLock making(making_);
  {
    MutexLock lock(abort_mutex_);
    if (device_error_) std::rethrow_exception(device_error_);
    if (device_backend_ || !make_device_backend_) return device_backend_;
  }
  std::shared_ptr<Backend> made;
  std::exception_ptr error;
  try {
    member();
    made = make_device_backend_(device);
  } catch (...) {
    error = std::current_exception();
  }
  MutexLock lock(abort_mutex_);
  // A second attempt would find this attempt's keys in the store.
  device_error_ = error;
  if (error) std::rethrow_exception(error);
  device_backend_ = made;
  abortable_.push_back(made);
  if (aborted_) made->abort(*aborted_);
  if (left_) made->leave();
  return made;
}

void GroupCore::check_supported(const Backend& backend,
                                const Operation& operation) const {
  if (backend.supports(operation)) return;
  throw InvalidArgument(
      fmt::format("the backend \"{}\" cannot do {} on these buffers",
                  backend.name(), describe(operation)));
}

Work GroupCore::run(Operation&& operation, const CallOptions& options) {
  check_process();
  if (!is_member()) refuse_call();
  validate(operation, identity_);
  return run_valid(operation, options);
}

Work GroupCore::run_valid(Operation& operation, const CallOptions& options) {
  operation.timeout = options.timeout.value_or(timeout_);
  operation.label = options.label;
  operation.stream = options.stream;
  std::shared_ptr<Backend> of_device;
  if (const Device device = device_of(operation);
      device.kind != DeviceKind::kCpu)
    of_device = device_backend(device);
  if (operation.graph != nullptr && !of_device)
    throw InvalidArgument(
        "replay: the graph is attached to another group, and this one has "
        "nothing on GPUs\n"
        "  next:    replay it by the group that it is attached to");
  if (is_point_to_point(operation.kind)) {
    const auto backend = of_device ? of_device : member();
    check_supported(*backend, operation);
    operation.sequence = ++messages_;
    return start(*backend, operation);
  }
  MutexLock lock(start_order_);
  if (!backend_) refuse_call();
  Backend& backend = of_device ? *of_device : *backend_;
  check_supported(backend, operation);
  operation.sequence = ++sequence_;
  return start(backend, operation);
}

Work GroupCore::start(Backend& backend, Operation& operation) {
  return recorder_ ? start_recorded(backend, operation)
                   : backend.start(operation);
}

Work GroupCore::start_recorded(Backend& backend, Operation& operation) {
  const std::uint64_t number = recorder_->begin(operation);
  operation.record = number;
  if (number == 0) world_->watch();
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug,
        fmt::format("rank {} of {} calls {} (group \"{}\")", identity_.rank,
                    identity_.size, describe(operation),
                    identity_.full_name()));
  Work work = backend.start(operation);
  recorder_->started(number, operation, work);
  return work;
}

Work GroupCore::sharded_update(Buffers gradients, Buffers parameters,
                               ReduceOp op, ShardUpdate& update,
                               const CallOptions& options) {
  update.carried_out = false;
  if (!reduces_in_place()) return Work();
  return run({.kind = OperationKind::kShardedUpdate,
              .inputs = gradients,
              .outputs = parameters,
              .reduction = op,
              .update = &update},
             options);
}

void GroupCore::attach(const std::shared_ptr<CapturedGraph>& graph,
                       const CallOptions& options) {
  if (!graph) throw InvalidArgument("attach: the graph pointer is null");
  member();
  std::shared_ptr<Backend> of_device;
  {
    MutexLock lock(abort_mutex_);
    of_device = device_backend_;
  }
  // Without a device backend no operation is captured.
  if (of_device) of_device->attach(graph, options.stream);
}

Work GroupCore::replay(const std::shared_ptr<CapturedGraph>& graph,
                       const CallOptions& options) {
  if (!graph) throw InvalidArgument("replay: the graph pointer is null");
  if (graph->contents().operations > 0)
    return run({.kind = OperationKind::kReplay, .graph = graph.get()}, options);
  member();
  graph->launch(options.stream != nullptr ? options.stream
                                          : current_stream(graph->device()));
  return Work();
}

std::vector<Work> GroupCore::run_batch(std::span<const Message> messages,
                                       const CallOptions& options) {
  check_process();
  if (!is_member()) refuse_call();
  const auto operation_of = [](const Message& message) -> Operation {
    const bool sends = message.direction == Message::Direction::kSend;
    return {.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
            .inputs = sends ? Buffers(message.buffer) : Buffers(),
            .outputs = sends ? Buffers() : Buffers(message.buffer),
            .peer = message.peer,
            .tag = message.tag};
  };
  // Checks all before it starts the first: after an InvalidArgument the caller
  // may free the memory of all messages.
  for (const Message& message : messages) {
    const Operation operation = operation_of(message);
    validate(operation, identity_);
    const auto of_device = message.buffer.device.kind == DeviceKind::kCpu
                               ? nullptr
                               : device_backend(message.buffer.device);
    check_supported(of_device ? *of_device : *member(), operation);
  }
  std::vector<Work> works;
  works.reserve(messages.size());
  for (const Message& message : messages) {
    Operation operation = operation_of(message);
    works.push_back(run_valid(operation, options));
  }
  return works;
}

}  // namespace lockstep
