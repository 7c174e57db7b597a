#include "apps/trainer/loop/test_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sample_order.h"
#include "lockstep/evaluate/evaluation.h"
#include "src/base/first_line.h"
#include "src/checkpoint/rank_zero.h"
#include "src/data/broken_samples.h"
#include "src/evaluate/model_outputs.h"
#include "src/evaluate/pending_metrics.h"
#include "src/torch/gradient/pass_errors.h"

namespace lockstep {
namespace {

// A header with a block of EXIF is at most as long.
constexpr std::streamsize kBlock = std::streamsize{64} << 10;

// The next bytes of a file; fewer at its end, none if it cannot be read.
std::string next_block(std::ifstream& file) {
  std::string bytes(static_cast<std::size_t>(kBlock), '\0');
  file.read(bytes.data(), kBlock);
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

std::string last_block(std::ifstream& file) {
  file.clear();
  file.seekg(0, std::ios::end);
  const auto size = static_cast<std::streamsize>(file.tellg());
  file.seekg(std::max<std::streamsize>(size - kBlock, 0));
  return next_block(file);
}

constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);
constexpr std::string_view kPngEnd("\0\0\0\0IEND\xae\x42\x60\x82", 12);
constexpr std::string_view kJpegScan("\xff\xda", 2);
constexpr std::string_view kJpegEnd("\xff\xd9", 2);

// A header takes 33 bytes: the signature, and a chunk of 13 bytes of data.
bool is_whole_png(std::string_view first, std::string_view last) {
  constexpr std::size_t kHeader = 33, kType = 12;
  return first.size() >= kHeader && first.substr(kType, 4) == "IHDR" &&
         last.rfind(kPngEnd) != std::string_view::npos;
}

// A preview in the header has an end of its own, before the image's pixels
// begin; the pixels hold neither marker.
bool is_whole_jpeg(std::string_view first, std::string_view last,
                   const std::string& name) {
  try {
    image_size(std::as_bytes(std::span(first)), name);
  } catch (const InvalidArgument&) {
    return false;
  }
  const std::size_t scan = last.rfind(kJpegScan);
  return last.find(kJpegEnd, scan == std::string_view::npos ? 0 : scan) !=
         std::string_view::npos;
}

// Whether the file begins with a header that can be read, and has the marker of
// its format's end near its end.
bool looks_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string first = next_block(file);
  const std::string last = last_block(file);
  return first.starts_with(kPngSignature)
             ? is_whole_png(first, last)
             : is_whole_jpeg(first, last, path.string());
}

// The first line of the error of reading sample `index`; empty without one.
std::string problem_of(const ImageFolder& images, std::int64_t index) {
  if (looks_whole(images.path(index))) return {};
  const auto [channels, height, width] = images.shape();
  std::vector<float> image(static_cast<std::size_t>(channels * height * width));
  try {
    images.read(index, 0, image);
    return {};
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!BrokenSamples::is_broken(error)) throw;
    return first_line(text_of_exception(error));
  }
}

// `most` is the largest number of them on one rank.
[[noreturn]] void refuse(const std::vector<std::string>& problems,
                         std::int64_t most) {
  constexpr std::size_t kShown = 5;
  std::string text = "cannot train: " + std::to_string(problems.size()) +
                     " of the test images cannot be read";
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i)
    text += "\n  " + problems[i];
  if (problems.size() > kShown)
    text += "\n  and " + std::to_string(problems.size() - kShown) + " more";
  throw InvalidArgument(
      text +
      "\n  next:    repair or remove them, or leave them out with "
      "--max-broken " +
      std::to_string(most));
}

// On the CPU it is contiguous, whatever training uses.
at::MemoryFormat memory_format(const TrainerOptions& options,
                               at::Device device) {
  return options.compute.channels_last && !device.is_cpu()
             ? at::MemoryFormat::ChannelsLast
             : at::MemoryFormat::Contiguous;
}

}  // namespace

TestImages::TestImages(const TrainerOptions& options,
                       const SampleSource& images,
                       const TrainedReplica& replica)
    : options_(options),
      samples_(images, options.max_broken),
      replica_(replica),
      batches_(samples_, replica.device,
               memory_format(options, replica.device)) {}

Metrics TestImages::evaluate() {
  const at::NoGradGuard no_grad;
  ProcessGroup& group = *replica_.group;
  auto& model = replica_.model;
  model.eval();
  model.broadcast_buffers();
  Loader loader(samples_,
                each_sample_once(samples_.size(), group.size(), group.rank()),
                {.batch_size = evaluation_batch(samples_.shape()),
                 .workers = options_.workers,
                 .elements = batches_.elements()});
  Metrics total;
  for_each_output(
      loader, batches_,
      [&](const at::Tensor& images) {
        return replica_.forward ? replica_.forward(images) : model(images);
      },
      group.timeout(),
      [&](const at::Tensor& all_logits, const at::Tensor& all_labels) {
        const auto [logits, labels] = without_broken(all_logits, all_labels);
        if (labels.size(0) == 0) return;
        total += PendingMetrics(at::cross_entropy_loss(logits, labels), logits,
                                labels)
                     .read();
      });
  return reduce(total, group);
}

BrokenImages TestImages::broken() const {
  BrokenImages broken({"test image", "left out"});
  broken.add(samples_.broken());
  return broken;
}

void check_test_images(const TrainerOptions& options, const TrainingData& data,
                       ProcessGroup& group) {
  const auto* images = dynamic_cast<const ImageFolder*>(data.test.get());
  if (images == nullptr) return;
  constexpr std::string_view kLooking = "looking at the test images";
  std::vector<std::string> problems;
  run_on_all_ranks(group, kLooking, [&] {
    for (std::int64_t i = group.rank(); i < images->size(); i += group.size())
      if (std::string problem = problem_of(*images, i); !problem.empty())
        problems.push_back(std::move(problem));
  });
  std::vector<std::int64_t> most{std::ssize(problems)};
  group.all_reduce(view(most), ReduceOp::kMax, {.label = kLooking}).wait();
  run_on_all_ranks(group, kLooking, [&] {
    if (std::ssize(problems) > options.max_broken) refuse(problems, most[0]);
  });
}

}  // namespace lockstep
