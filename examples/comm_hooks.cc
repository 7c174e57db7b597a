// What ranks send instead of gradients: 16 bits instead of 32, thin matrices,
// the result of your own hook, and periodically the models themselves.
//
//     lockstep run -n 4 ./comm_hooks
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

using Model = lockstep::DistributedDataParallel<torch::nn::SequentialImpl>;

Model make_model() {
  return Model(torch::nn::Sequential(
      torch::nn::Linear(32, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1)));
}

// One step towards the length of random points of this rank's own.
void train_step(Model& model, torch::optim::Optimizer& optimizer) {
  const at::Tensor points = torch::rand({64, 32});
  optimizer.zero_grad();
  torch::mse_loss(model(points), points.norm(2, 1, true)).backward();
  optimizer.step();
}

// The average loss of all ranks after 200 steps.
double train(
    Model& model, const std::function<void()>& after_step = [] {}) {
  torch::optim::SGD optimizer(model.parameters(), 0.02);
  for (int step = 0; step < 200; ++step) {
    train_step(model, optimizer);
    after_step();
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor points = torch::rand({256, 32});
  at::Tensor loss = torch::mse_loss(model(points), points.norm(2, 1, true));
  lockstep::all_reduce(*model.group(), loss, lockstep::ReduceOp::kAverage)
      .wait();
  return loss.item<double>();
}

// Your own hook: numbers that are not finite do not reach the other ranks.
class FiniteHook : public lockstep::CommHook {
 public:
  lockstep::HookProgress start(const lockstep::GradBucket& bucket) override {
    bucket.buffer.nan_to_num_(0, 0, 0);
    return {lockstep::all_reduce_average(bucket)};
  }
};

// Pairs of ranks average gradients; all ranks average models every 4th step.
double train_with_local_sgd(const lockstep::ProcessGroup& world) {
  auto model = make_model();
  const auto pair =
      lockstep::split(*model.group(), {.color = world.rank() / 2});
  model.register_comm_hook(std::make_shared<lockstep::PostLocalSgdHook>(
      lockstep::PostLocalSgdOptions{.subgroup = pair, .start_iteration = 20}));
  lockstep::PeriodicModelAverager averager({.period = 4, .warmup_steps = 20});
  return train(model, [&] { averager.average_parameters(model.parameters()); });
}

int main() {
  const auto group = lockstep::init_process_group();
  torch::manual_seed(group->rank());  // each rank has its own points

  auto halved = make_model();
  halved.register_comm_hook(lockstep::bf16_compress_hook());
  auto thin = make_model();
  const auto power_sgd =
      std::make_shared<lockstep::PowerSgdHook>(lockstep::PowerSgdOptions{
          .matrix_approximation_rank = 2, .start_iteration = 20});
  thin.register_comm_hook(power_sgd);
  auto finite = make_model();
  finite.register_comm_hook(std::make_shared<FiniteHook>());

  const double losses[] = {train(halved), train(thin), train(finite),
                           train_with_local_sgd(*group)};
  if (group->rank() == 0)
    std::printf(
        "losses: bfloat16 %.4f, PowerSGD %.4f (%.1f times less is sent, %.0f "
        "%% "
        "left for later), own hook %.4f, local %.4f\n",
        losses[0], losses[1], power_sgd->report().ratio(),
        100 * power_sgd->report().relative_error, losses[2], losses[3]);
  return std::ranges::all_of(losses, [](double loss) { return loss < 0.1; })
             ? 0
             : 1;
}
