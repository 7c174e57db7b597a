// A language model of characters: a whole training without images.
//
//     ./language_model                        numbers in words
//     ./language_model book.txt               a text of your own
//     lockstep run -n 2 ./language_model book.txt runs/1
//
// The last one saves the run in the folder runs/1, and the same command goes on
// there after a kill, also in the middle of an epoch and on another number of
// ranks. A third argument ends this start after so many steps.
//
// The batches are the same on 1, 2, 4, … ranks, and so are the numbers, but for
// the order of sums of floats.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

constexpr std::int64_t kBytes = 256;       // a character is a byte of the text
constexpr std::int64_t kLength = 32;       // characters in a window
constexpr std::int64_t kGlobalBatch = 16;  // windows, of all ranks together
constexpr std::int64_t kMicroBatch = 4;    // windows that a rank takes at once
constexpr std::int64_t kEpochs = 4;
constexpr std::int64_t kSaveEvery = 10;  // steps
constexpr double kRate = 0.005;

// Predicts the next character after each one of a window.
struct NextCharacterImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& characters) {
    return head(std::get<0>(memory(embedding(characters))));
  }
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(kBytes, 32));
  torch::nn::GRU memory = register_module(
      "memory",
      torch::nn::GRU(torch::nn::GRUOptions(32, 128).batch_first(true)));
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(128, kBytes));
};
TORCH_MODULE(NextCharacter);

// The wrapper's type names the module itself, not its holder NextCharacter.
using Model = lockstep::DistributedDataParallel<NextCharacterImpl>;

std::string in_words(int number) {
  static const char* const small[] = {
      "zero",    "one",     "two",       "three",    "four",
      "five",    "six",     "seven",     "eight",    "nine",
      "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
      "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
  static const char* const tens[] = {"twenty", "thirty",  "forty",  "fifty",
                                     "sixty",  "seventy", "eighty", "ninety"};
  if (number < 20) return small[number];
  if (number >= 100)
    return in_words(number / 100) + " hundred and " + in_words(number % 100);
  const std::string ten = tens[number / 10 - 2];
  return number % 10 == 0 ? ten : ten + "-" + small[number % 10];
}

// The file at `path`, or 1,000 numbers in an order that looks random.
std::string read_text(const char* path) {
  if (path != nullptr) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(std::string("cannot read ") + path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string text;
  for (int i = 0; i < 1000; ++i) text += in_words(i * 617 % 1000) + ", ";
  return text;
}

// Windows for training, and the last tenth of the text for the test: rows of
// kLength characters and the one after them.
struct Windows {
  at::Tensor train, test;
};
Windows windows_of(const std::string& text) {
  const auto length = static_cast<std::int64_t>(text.size());
  if (length < 2 * kGlobalBatch * kLength)
    throw std::runtime_error("the text has fewer than " +
                             std::to_string(2 * kGlobalBatch * kLength) +
                             " characters");
  const at::Tensor rows =
      torch::from_blob(const_cast<char*>(text.data()), length, torch::kUInt8)
          .to(torch::kLong)
          .unfold(0, kLength + 1, kLength);
  const std::int64_t train = rows.size(0) * 9 / 10;
  return {rows.slice(0, 0, train), rows.slice(0, train)};
}

at::Tensor loss_of(Model& model, const at::Tensor& windows) {
  const at::Tensor logits = model(windows.slice(1, 0, kLength));
  return torch::cross_entropy_loss(logits.flatten(0, 1),
                                   windows.slice(1, 1).flatten());
}

// One step with this rank's share of a global batch, a few windows at a time.
// Returns the mean loss of the share.
double train_step(Model& model, torch::optim::Optimizer& optimizer,
                  const at::Tensor& share) {
  optimizer.zero_grad();
  double mean = 0;
  std::int64_t left = share.size(0);
  for (const at::Tensor& part : share.split(kMicroBatch)) {
    left -= part.size(0);
    // Gradients stay on this rank, but for the last pass, which averages all.
    std::optional<lockstep::NoSync> scope;
    if (left > 0) scope.emplace(model.no_sync());
    const at::Tensor loss =
        loss_of(model, part) * (static_cast<double>(part.size(0)) /
                                static_cast<double>(share.size(0)));
    loss.backward();
    mean += loss.item<double>();
  }
  lockstep::clip_grad_norm(model.parameters(), 1);
  optimizer.step();
  return mean;
}

// The perplexity of all windows, of which each rank measures its share: it may
// have one window less than another rank, or none.
double perplexity(Model& model, const at::Tensor& windows) {
  const auto& group = model.group();
  const lockstep::EvaluationMode mode(*model);
  const torch::NoGradGuard no_gradients;
  lockstep::MeanMetric loss;
  const at::Tensor share =
      windows.slice(0, group->rank(), std::nullopt, group->size());
  for (const at::Tensor& part : share.split(64))
    if (part.size(0) > 0)
      loss.update(loss_of(model, part).item<double>(),
                  static_cast<double>(part.size(0)));
  return std::exp(loss.compute(*group));
}

// The rates of a run of `all` steps of which `done` are made: they rise over a
// tenth of the run, then fall along half a cosine. The schedule begins with the
// optimizer's first rate, which a checkpoint replaces.
lockstep::CosineAnnealingLR schedule_of(torch::optim::Optimizer& optimizer,
                                        std::int64_t all, std::int64_t done) {
  for (auto& parameters : optimizer.param_groups())
    parameters.options().set_lr(kRate);
  const std::int64_t warmup = all / 10;
  return {optimizer,
          {.t_max = all - warmup, .last_epoch = done, .warmup = warmup}};
}

// A run, or its next `most_steps` steps. Saves to `path`, unless it is empty,
// and goes on from there.
void train(Model& model, const Windows& windows,
           const std::filesystem::path& path, std::int64_t most_steps) {
  const auto& group = model.group();
  torch::optim::AdamW optimizer(model.parameters(), kRate);
  std::int64_t epoch = 0, step = 0;
  const lockstep::TrainingState state{
      .model = model.module(),
      .optimizer = &optimizer,
      .counters = {{"epoch", &epoch}, {"step", &step}},
      .job = {{"windows", std::to_string(windows.train.size(0))}}};
  std::optional<lockstep::CheckpointFolder> folder;
  if (!path.empty()) folder.emplace(path);
  if (folder && folder->resume(state) && group->rank() == 0)
    std::printf("went on after %d epochs and %d steps\n",
                static_cast<int>(epoch), static_cast<int>(step));

  const std::int64_t steps = windows.train.size(0) / kGlobalBatch;
  const std::int64_t share = kGlobalBatch / group->size();
  auto schedule = schedule_of(optimizer, kEpochs * steps, epoch * steps + step);
  const lockstep::TensorDataset samples({windows.train});
  for (; epoch < kEpochs; ++epoch, step = 0) {
    // What the epoch still has, as this rank sees it.
    const auto rest = lockstep::sampler_sequence(
        samples.size(), {.world_size = group->size(),
                         .rank = group->rank(),
                         .epoch = static_cast<std::uint64_t>(epoch),
                         .drop_last = true,
                         .consumed = step * kGlobalBatch});
    lockstep::TensorLoader loader(samples, rest,
                                  {.batch_size = share, .drop_last = true});
    lockstep::MeanMetric loss;  // since this start of the program
    while (const auto batch = loader.next(std::chrono::minutes(1))) {
      if (most_steps-- == 0) return;
      loss.update(train_step(model, optimizer, (*batch)[0]));
      schedule.step();
      if (++step % kSaveEvery == 0 && step < steps && folder)
        folder->save(state, epoch * steps + step);
    }
    const double mean = loss.compute(*group);
    const double of_test = perplexity(model, windows.test);
    if (group->rank() == 0)
      std::printf("epoch %d: loss %.4f, perplexity %.4f\n",
                  static_cast<int>(epoch) + 1, mean, of_test);
  }
  if (folder) folder->save(state, kEpochs * steps);
}

int main(int count, char** arguments) {
  const auto group = lockstep::init_process_group();
  if (kGlobalBatch % group->size() != 0)
    throw std::runtime_error("the number of ranks must divide " +
                             std::to_string(kGlobalBatch));
  const Windows windows =
      windows_of(read_text(count > 1 ? arguments[1] : nullptr));
  torch::manual_seed(0);
  Model model{NextCharacter()};
  train(model, windows, count > 2 ? arguments[2] : "",
        count > 3 ? std::stoll(arguments[3])
                  : std::numeric_limits<std::int64_t>::max());
  std::printf("rank %d: perplexity %.6f\n", group->rank(),
              perplexity(model, windows.test));
}
