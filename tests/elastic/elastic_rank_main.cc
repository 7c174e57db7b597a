// A rank of an elastic training for elastic_test.py, which says by NAME=VALUE
// arguments what happens.
//
//   steps=N         trains up to step N, and commits after every `commit`th
//   size=S          goes on until the group has S ranks, and 20 steps more
//   die=ID:STEP:US  worker ID is killed by SIGKILL US microseconds after it
//                   begins step STEP
//   die_again=ID:STEP  worker ID is killed when it begins step STEP in its
//                   second group
//   die_reset=ID    worker ID is killed when it has formed a second group
//   fail_reset=ID   worker ID then exits with code 9
//   die_leaving=ID:US  the same US microseconds after it lost its first group
//   die_after=ID    worker ID is killed when it has ended its training
//   exit=ID:STEP    worker ID ends with code 0 when it begins step STEP
//   stop=ID:STEP    worker ID stops itself by SIGSTOP when it begins step STEP
//   again=1         calls run() a second time
//   save=FOLDER     resumes from the newest checkpoint there before the first
//                   step, and saves one of every third step
//   die_start=ID    worker ID is killed when it starts
//   in=FILE out=FILE from=A to=B   an undisturbed training from step A to B,
//                   from the state in FILE if A is above 0
#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

using Arguments = std::map<std::string, std::string>;

std::string text_of(const Arguments& arguments, const std::string& name) {
  const auto found = arguments.find(name);
  return found == arguments.end() ? "" : found->second;
}

long number_of(const Arguments& arguments, const std::string& name, long none) {
  const std::string text = text_of(arguments, name);
  return text.empty() ? none : std::stol(text);
}

// The numbers in a text like "1:20:300".
std::vector<long> numbers_in(const std::string& text) {
  std::vector<long> numbers;
  for (std::size_t place = 0; place < text.size();) {
    std::size_t used = 0;
    numbers.push_back(std::stol(text.substr(place), &used));
    place += used + 1;
  }
  return numbers;
}

// The worker's id; its rank where the job does not re-form in place.
long own_id() {
  for (const char* name : {"LOCKSTEP_ELASTIC_ID", "RANK"})
    if (const char* const id = std::getenv(name)) return std::stol(id);
  return 0;
}

long long now() {
  return static_cast<long long>(
      std::chrono::steady_clock::now().time_since_epoch().count());
}

[[noreturn]] void die() {
  std::printf("death at=%lld\n", now());
  std::fflush(stdout);
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

void die_after(long microseconds) {
  std::thread([until = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(microseconds)] {
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    die();
  }).detach();
}

torch::nn::Sequential make_net() {
  torch::manual_seed(own_id());  // differs between workers
  return torch::nn::Sequential(torch::nn::Linear(6, 16),
                               torch::nn::BatchNorm1d(16), torch::nn::Tanh(),
                               torch::nn::Linear(16, 3));
}

torch::optim::SGD make_optimizer(const torch::nn::Sequential& net) {
  return torch::optim::SGD(net->parameters(),
                           torch::optim::SGDOptions(0.05).momentum(0.9));
}

using Model = lockstep::DistributedDataParallel<torch::nn::SequentialImpl>;

void take_step(Model& model, torch::optim::Optimizer& optimizer, long step) {
  torch::manual_seed(step * 100 + lockstep::get_rank());
  const at::Tensor input = torch::rand({8, 6});
  optimizer.zero_grad();
  model(input).square().mean().backward();
  optimizer.step();
}

// FNV-1a of all parameters. Buffers differ after a step: DDP makes them equal
// before the next one.
std::uint64_t hash_of(const torch::nn::Module& module) {
  std::uint64_t hash = 14695981039346656037U;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor bytes = tensor.detach().contiguous();
    const auto* data =
        static_cast<const unsigned char*>(bytes.const_data_ptr());
    for (std::size_t i = 0; i < bytes.nbytes(); ++i)
      hash = (hash ^ data[i]) * 1099511628211U;
  };
  for (const at::Tensor& tensor : module.parameters()) add(tensor);
  return hash;
}

void say_end(const torch::nn::Sequential& net, long step) {
  std::printf("end rank=%d size=%d step=%ld weights=%016lx\n",
              lockstep::get_rank(), lockstep::get_world_size(), step,
              hash_of(*net));
}

// Dies while this worker's first group comes to its end.
struct DiesLeaving {
  ~DiesLeaving() {
    if (!numbers.empty() && numbers[0] == own_id() && calls == 1)
      die_after(numbers[1]);
  }
  std::vector<long> numbers;
  const int& calls;
};

class Training {
 public:
  explicit Training(const Arguments& arguments)
      : arguments_(arguments),
        state_({.model = net_.ptr(),
                .optimizer = &optimizer_,
                .counters = {{"step", &step_}}}) {
    state_.register_reset_callbacks({[this] {
      if (number_of(arguments_, "die_reset", -2) == own_id()) die();
      if (number_of(arguments_, "fail_reset", -2) == own_id()) std::_Exit(9);
    }});
  }

  void run() {
    lockstep::elastic::run(state_, [this](auto&) { train(); });
    if (number_of(arguments_, "die_after", -2) == own_id()) die();
    if (arguments_.contains("again"))
      lockstep::elastic::run(state_, [this](auto&) { train(); });
    say_end(net_, step_);
  }

 private:
  bool is_complete(long begin) const {
    if (step_ < number_of(arguments_, "steps", 100)) return false;
    const long size = number_of(arguments_, "size", 0);
    return size == 0 ||
           (lockstep::get_world_size() == size && step_ >= begin + 20);
  }

  void train() {
    ++calls_;
    const DiesLeaving leaving{numbers_in(text_of(arguments_, "die_leaving")),
                              calls_};
    const long begin = step_;
    if (lockstep::get_rank() == 0)
      std::printf("begin size=%d step=%ld at=%lld\n",
                  lockstep::get_world_size(), begin, now());
    Model model(net_);
    std::optional<lockstep::CheckpointFolder> folder;
    if (arguments_.contains("save"))
      folder.emplace(text_of(arguments_, "save"),
                     lockstep::CheckpointFolderOptions{.keep = 1000});
    if (folder && step_ == 0 && folder->resume(files_)) state_.commit();
    const auto death = numbers_in(text_of(arguments_, "die"));
    while (!is_complete(begin)) {
      if (!death.empty() && death[0] == own_id() && death[1] == step_ &&
          calls_ == 1)
        die_after(death[2]);
      if (const auto again = numbers_in(text_of(arguments_, "die_again"));
          !again.empty() && again[0] == own_id() && again[1] == step_ &&
          calls_ == 2)
        die();
      if (const auto end = numbers_in(text_of(arguments_, "exit"));
          !end.empty() && end[0] == own_id() && end[1] == step_)
        std::_Exit(0);
      if (const auto stop = numbers_in(text_of(arguments_, "stop"));
          !stop.empty() && stop[0] == own_id() && stop[1] == step_)
        ::kill(::getpid(), SIGSTOP);
      take_step(model, optimizer_, step_);
      if (step_ == begin && lockstep::get_rank() == 0)
        std::printf("stepped at=%lld\n", now());
      ++step_;
      if (folder && step_ % 3 == 0) folder->save(files_, step_);
      if (step_ % number_of(arguments_, "commit", 1) == 0) state_.commit();
    }
  }

  const Arguments& arguments_;
  torch::nn::Sequential net_ = make_net();
  torch::optim::SGD optimizer_ = make_optimizer(net_);
  std::int64_t step_ = 0;
  lockstep::elastic::State state_;
  const lockstep::TrainingState files_{.model = net_.ptr(),
                                       .optimizer = &optimizer_,
                                       .counters = {{"step", &step_}}};
  int calls_ = 0;
};

void replay(const Arguments& arguments) {
  lockstep::init_process_group();
  torch::nn::Sequential net = make_net();
  torch::optim::SGD optimizer = make_optimizer(net);
  if (const std::string file = text_of(arguments, "in"); !file.empty()) {
    torch::load(net, file + ".net");
    torch::load(optimizer, file + ".optimizer");
  }
  Model model(net);
  const long end = number_of(arguments, "to", 0);
  for (long step = number_of(arguments, "from", 0); step < end; ++step)
    take_step(model, optimizer, step);
  if (lockstep::get_rank() == 0) {
    torch::save(net, text_of(arguments, "out") + ".net");
    torch::save(optimizer, text_of(arguments, "out") + ".optimizer");
  }
  say_end(net, end);
}

}  // namespace

int main(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    const std::size_t equals = text.find('=');
    arguments[text.substr(0, equals)] = text.substr(equals + 1);
  }
  if (number_of(arguments, "die_start", -2) == own_id()) die();
  if (arguments.contains("to"))
    replay(arguments);
  else
    Training(arguments).run();
  return 0;
}
