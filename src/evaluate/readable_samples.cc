#include "src/evaluate/readable_samples.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <iterator>

#include "lockstep/base/error.h"
#include "src/data/broken_samples.h"
#include "src/torch/gradient/pass_errors.h"

namespace lockstep {

template <class Element, class Read>
std::int64_t ReadableSamples::try_read(std::int64_t index,
                                       std::span<Element> image,
                                       const Read& read) const {
  if (most_ == 0) return read();
  try {
    return read();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!BrokenSamples::is_broken(error)) throw;
    note(index, error);
  }
  std::ranges::fill(image, Element{});
  return kBrokenLabel;
}

std::int64_t ReadableSamples::read(std::int64_t index, std::uint64_t epoch,
                                   std::span<float> image) const {
  return try_read(index, image,
                  [&] { return source_.read(index, epoch, image); });
}

std::int64_t ReadableSamples::read_pixels(std::int64_t index,
                                          std::uint64_t epoch,
                                          std::span<std::uint8_t> image) const {
  return try_read(index, image,
                  [&] { return source_.read_pixels(index, epoch, image); });
}

void ReadableSamples::note(std::int64_t index,
                           const std::exception_ptr& error) const {
  const std::string message = text_of_exception(error);
  const MutexLock lock(mutex_);
  if (std::ssize(messages_) < most_ || messages_.contains(index)) {
    messages_.emplace(index, message);
    return;
  }
  throw InvalidArgument(
      "more than " + std::to_string(most_) +
      " samples of this evaluation are broken, which is as many as are "
      "permitted; one more: " +
      message +
      "\n  next:    repair or remove them, or permit more with --max-broken "
      "(in "
      "a program, EvaluationOptions::max_broken)");
}

std::vector<BrokenSample> ReadableSamples::broken() const {
  const MutexLock lock(mutex_);
  std::vector<BrokenSample> all;
  for (const auto& [index, message] : messages_)
    all.push_back({index, message});
  return all;
}

ReadableRows without_broken(const at::Tensor& logits,
                            const at::Tensor& labels) {
  const at::Tensor keeps = labels.ne(kBrokenLabel);
  if (keeps.all().item<bool>()) return {logits, labels};
  return {logits.index({keeps}), labels.index({keeps})};
}

}  // namespace lockstep
