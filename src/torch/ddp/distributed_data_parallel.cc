#include "lockstep/torch/distributed_data_parallel.h"

#include <exception>

#include "src/planning/pass_policy.h"
#include "src/torch/ddp/replica.h"
#include "src/torch/tensor/module_tensors.h"

namespace lockstep {
namespace {

class EndOfJoin {
 public:
  explicit EndOfJoin(Replica& replica) : replica_(replica) {}
  ~EndOfJoin() { replica_.end_join(); }
  EndOfJoin(const EndOfJoin&) = delete;
  EndOfJoin& operator=(const EndOfJoin&) = delete;

 private:
  Replica& replica_;
};

}  // namespace

Join::Join(Replica& replica, const JoinOptions& options)
    : replica_(replica), exceptions_(std::uncaught_exceptions()) {
  replica_.begin_join(options);
}

Join::~Join() noexcept(false) {
  const EndOfJoin end(replica_);
  if (std::uncaught_exceptions() == exceptions_) replica_.shadow_the_others();
}

NoSync::NoSync(std::shared_ptr<PassPolicy> policy)
    : policy_(std::move(policy)) {
  policy_->enter_no_sync();
}

NoSync::~NoSync() {
  if (policy_) policy_->leave_no_sync();
}

ReplicatedModule::ReplicatedModule(
    std::shared_ptr<torch::nn::Module> module,
    const DistributedDataParallelOptions& options)
    : replica_(std::make_unique<Replica>(std::move(module), options)) {}

ReplicatedModule::~ReplicatedModule() = default;
ReplicatedModule::ReplicatedModule(ReplicatedModule&&) noexcept = default;
ReplicatedModule& ReplicatedModule::operator=(ReplicatedModule&&) noexcept =
    default;

void ReplicatedModule::before_forward() { replica_->before_forward(); }

void ReplicatedModule::after_forward(const at::Tensor& output) {
  replica_->watch_output(output);
}

void ReplicatedModule::broadcast_buffers() { replica_->broadcast_buffers(); }

NoSync ReplicatedModule::no_sync() const { return replica_->no_sync(); }

Join ReplicatedModule::join(const JoinOptions& options) {
  return Join(*replica_, options);
}

void ReplicatedModule::register_comm_hook(std::shared_ptr<CommHook> hook) {
  replica_->register_comm_hook(std::move(hook));
}

std::vector<at::Tensor> ReplicatedModule::parameters() const {
  return distinct_parameters(*replica_->module());
}

torch::OrderedDict<std::string, at::Tensor> ReplicatedModule::named_parameters()
    const {
  return distinct_named_parameters(*replica_->module());
}

const std::shared_ptr<ProcessGroup>& ReplicatedModule::group() const {
  return replica_->group();
}

torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive, const ReplicatedModule& model) {
  return archive << model.replica_->module();
}

torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, ReplicatedModule& model) {
  load_in_place(archive, *model.replica_->module());
  return archive;
}

}  // namespace lockstep
