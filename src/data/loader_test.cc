#include "lockstep/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/sanitized.h"
#include "src/base/testing/address_space.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

// Samples whose pixels are index + epoch / 1000 and whose label is the index. A
// test can set an action that runs before each read.
class CountingSource final : public SampleSource {
 public:
  explicit CountingSource(
      std::int64_t size, std::function<void(std::int64_t)> before = [](auto) {})
      : size_(size), before_(std::move(before)) {}

  std::int64_t size() const override { return size_; }
  ImageShape shape() const override { return {1, 2, 3}; }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override {
    before_(index);
    std::fill(image.begin(), image.end(), value(index, epoch));
    ++samples_read;
    return index;
  }

  static float value(std::int64_t index, std::uint64_t epoch) {
    return static_cast<float>(index) + static_cast<float>(epoch) / 1000.0f;
  }

  mutable std::atomic<int> samples_read{0};

 private:
  std::int64_t size_;
  std::function<void(std::int64_t)> before_;
};

// Samples whose pixels are the index plus the epoch, with levels of half of it.
class PixelSource final : public SampleSource {
 public:
  // Reading `broken` throws.
  explicit PixelSource(std::int64_t broken = -1) : broken_(broken) {
    for (std::size_t pixel = 0; pixel < kPixelValues; ++pixel)
      levels_.push_back(static_cast<float>(pixel) / 2);
  }

  std::int64_t size() const override { return 100; }
  ImageShape shape() const override { return {1, 2, 3}; }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override {
    check(index);
    std::ranges::fill(image, levels_[pixel(index, epoch)]);
    return index;
  }
  std::span<const float> levels() const override { return levels_; }
  std::int64_t read_pixels(std::int64_t index, std::uint64_t epoch,
                           std::span<std::uint8_t> image) const override {
    check(index);
    std::ranges::fill(image, pixel(index, epoch));
    return index;
  }

 private:
  void check(std::int64_t index) const {
    if (index == broken_) throw InvalidArgument("broken");
  }
  static std::uint8_t pixel(std::int64_t index, std::uint64_t epoch) {
    return static_cast<std::uint8_t>(static_cast<std::uint64_t>(index) + epoch);
  }

  const std::int64_t broken_;
  std::vector<float> levels_;
};

// A gate at which threads wait until it opens.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void wait_for_somebody() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool waiting_ = false;
};

std::vector<std::int64_t> first(std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

std::vector<std::int64_t> labels_of(const Batch& batch) {
  return {batch.labels().begin(), batch.labels().end()};
}

// The labels of all batches.
std::vector<std::vector<std::int64_t>> drain(Loader& loader) {
  std::vector<std::vector<std::int64_t>> result;
  while (const auto batch = loader.next(1min))
    result.push_back(labels_of(*batch));
  return result;
}

TEST(Loader, YieldsBatchesInTheOrderOfTheIndices) {
  const CountingSource source(10);
  Loader loader(source, {9, 0, 4, 4, 2}, {.batch_size = 2});
  EXPECT_EQ(loader.batch_count(), 3);
  EXPECT_THAT(drain(loader), ElementsAre(ElementsAre(9, 0), ElementsAre(4, 4),
                                         ElementsAre(2)));
}

TEST(Loader, YieldsTheSameBatchesWithAnyNumberOfWorkers) {
  const CountingSource source(1000);
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::int64_t> indices = first(1000);
  std::ranges::shuffle(indices, std::mt19937(seed));
  for (const std::int64_t workers : {1, 2, 3, 8})
    for (const std::int64_t batch_size : {1, 2, 7, 64, 2000}) {
      Loader loader(source, indices,
                    {.batch_size = batch_size, .epoch = 3, .workers = workers});
      std::int64_t done = 0;
      while (const auto batch = loader.next(1min))
        for (std::size_t i = 0; i < batch->labels().size(); ++i, ++done) {
          const std::int64_t index = indices[static_cast<std::size_t>(done)];
          ASSERT_EQ(batch->labels()[i], index);
          for (const float value : batch->images().subspan(6 * i, 6))
            ASSERT_EQ(value, CountingSource::value(index, 3));
        }
      EXPECT_EQ(done, 1000);
    }
}

TEST(Loader, ReadsABatchWithAllItsWorkersAtOnce) {
  std::barrier all_read(4);
  const CountingSource source(
      8, [&](std::int64_t) { all_read.arrive_and_wait(); });
  Loader loader(source, first(8), {.batch_size = 8, .workers = 4});
  EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAreArray(first(8)));
}

TEST(Loader, ReadsTheNextBatchWhileOneWorkerIsSlow) {
  Gate gate;
  std::atomic<int> others{0};
  const CountingSource source(100, [&](std::int64_t index) {
    if (index == 0) gate.wait();
    ++others;
    others.notify_all();
  });
  Loader loader(source, first(100),
                {.batch_size = 4, .prefetch = 2, .workers = 2});
  // All of the first two batches but the slow sample, and nothing else.
  for (int seen = others; seen < 7; seen = others) others.wait(seen);
  EXPECT_EQ(others, 7);
  gate.open();
  EXPECT_EQ(drain(loader).size(), 25u);
}

TEST(Loader, ThrowsTheErrorOfTheFirstSampleWithAnyNumberOfWorkers) {
  for (const std::int64_t workers : {1, 2, 5}) {
    const CountingSource source(100, [](std::int64_t index) {
      if (index >= 13) throw std::out_of_range(std::to_string(index));
    });
    Loader loader(source, first(100),
                  {.batch_size = 10, .prefetch = 4, .workers = workers});
    EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAreArray(first(10)));
    for (int again = 0; again < 2; ++again) {
      try {
        loader.next(1min);
        ADD_FAILURE() << "no error";
      } catch (const std::out_of_range& error) {
        EXPECT_STREQ(error.what(), "13") << workers;
      }
    }
  }
}

// Samples of which `broken` fail as a source's do.
CountingSource source_with_broken(std::int64_t size,
                                  std::set<std::int64_t> broken) {
  return CountingSource(size, [broken = std::move(broken)](auto index) {
    if (broken.contains(index))
      throw InvalidArgument("cannot read sample " + std::to_string(index));
  });
}

std::vector<std::int64_t> indices_of(std::span<const BrokenSample> samples) {
  std::vector<std::int64_t> indices;
  for (const BrokenSample& sample : samples) indices.push_back(sample.index);
  return indices;
}

TEST(Loader, ReplacesBrokenSamplesByTheNextOnesOfTheSource) {
  for (const std::int64_t workers : {1, 2, 5}) {
    const CountingSource source = source_with_broken(10, {1, 4, 5, 9});
    Loader loader(source, {9, 8, 5, 4, 1, 5, 0},
                  {.batch_size = 4, .workers = workers, .max_broken = 4});
    EXPECT_TRUE(loader.broken().empty());
    EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAre(0, 8, 6, 6));
    EXPECT_THAT(indices_of(loader.broken()), ElementsAre(9, 5, 4));
    EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAre(2, 6, 0));
    EXPECT_THAT(indices_of(loader.broken()), ElementsAre(9, 5, 4, 1));
    EXPECT_EQ(loader.broken()[1].message, "cannot read sample 5");
    EXPECT_FALSE(loader.next(1min).has_value());
  }
}

TEST(Loader, ReplacesPixelsAndNumbersAlike) {
  const PixelSource source(3);
  for (const ImageElements elements :
       {ImageElements::kPixels, ImageElements::kFloat32}) {
    Loader loader(source, {3},
                  {.epoch = 2, .elements = elements, .max_broken = 1});
    const auto batch = loader.next(1min);
    EXPECT_THAT(labels_of(*batch), ElementsAre(4));
    if (elements == ImageElements::kPixels)
      EXPECT_THAT(batch->pixels(), testing::Each(6));
    else
      EXPECT_THAT(batch->images(), testing::Each(3.0f));
  }
}

// What next() throws, which it must throw again.
template <class Error>
std::string error_of_next(Loader& loader) {
  std::string first;
  for (int again = 0; again < 2; ++again) try {
      loader.next(1min);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      if (again == 0) first = error.what();
      EXPECT_EQ(error.what(), first);
    }
  return first;
}

TEST(Loader, NamesTheFirstBrokenSampleThatExceedsTheNumber) {
  for (const std::int64_t workers : {1, 2, 5}) {
    const CountingSource source =
        source_with_broken(100, {3, 17, 18, 19, 25, 26, 27});
    Loader loader(source, first(100),
                  {.batch_size = 10, .workers = workers, .max_broken = 2});
    EXPECT_EQ(loader.next(1min)->labels()[3], 4);
    EXPECT_THAT(
        error_of_next<InvalidArgument>(loader),
        AllOf(HasSubstr("more than 2 samples of this pass are broken"),
              HasSubstr("one more: cannot read sample 18"), HasSubstr("next:")))
        << workers;
    EXPECT_THAT(indices_of(loader.broken()), ElementsAre(3, 17));
  }
}

TEST(Loader, EndsWhereNoSampleOfTheSourceCanBeRead) {
  const CountingSource source = source_with_broken(3, {0, 1, 2});
  Loader loader(source, first(3), {.max_broken = INT64_MAX});
  EXPECT_EQ(error_of_next<InvalidArgument>(loader), "cannot read sample 0");
}

TEST(Loader, ReplacesWhatTheSystemRefusesToReadButNoLackOfDescriptors) {
  for (const int reason : {EACCES, ENOENT, EIO, EMFILE, ENOMEM}) {
    const CountingSource source(10, [&](std::int64_t index) {
      if (index == 5) throw SystemError("cannot read", reason);
    });
    Loader loader(source, first(10), {.max_broken = 9});
    if (reason == EMFILE || reason == ENOMEM)
      EXPECT_THROW(loader.next(1min), SystemError);
    else
      EXPECT_EQ(loader.next(1min)->labels()[5], 6);
  }
}

TEST(Loader, ReplacesNoSampleWhoseErrorIsABugOrNotTheSources) {
  const CountingSource memory(10, [](std::int64_t index) {
    if (index == 5) throw std::bad_alloc();
  });
  Loader loader(memory, first(10), {.max_broken = 9});
  error_of_next<std::bad_alloc>(loader);
  const CountingSource bug(10, [](std::int64_t index) {
    if (index == 5) throw InternalError("bug");
  });
  Loader other(bug, first(10), {.max_broken = 9});
  EXPECT_EQ(error_of_next<InternalError>(other), "bug");
}

TEST(Loader, ReadsABrokenSampleOnce) {
  std::atomic<int> broken_reads{0};
  // A run of them, as an unreadable class is, must not cost its square.
  constexpr std::int64_t kBroken = 100'000;
  const CountingSource source(2 * kBroken, [&](std::int64_t index) {
    if (index >= kBroken) return;
    ++broken_reads;
    throw InvalidArgument("broken");
  });
  Loader loader(source, first(2 * kBroken),
                {.batch_size = 256, .max_broken = kBroken});
  for (const auto& labels : drain(loader))
    for (const std::int64_t label : labels) ASSERT_GE(label, kBroken);
  EXPECT_EQ(std::ssize(loader.broken()), kBroken);
  EXPECT_EQ(broken_reads, kBroken);
}

TEST(Loader, EndsWhileItLooksForASampleThatIsNotBroken) {
  constexpr std::int64_t kSamples = 1'000'000;
  Gate begun;
  begun.open();
  std::atomic<std::int64_t> tried{0};
  const CountingSource source(kSamples, [&](std::int64_t index) {
    if (index == 0) begun.wait();
    ++tried;
    throw InvalidArgument("broken");
  });
  {
    Loader loader(source, first(kSamples), {.max_broken = kSamples});
    begun.wait_for_somebody();
  }
  EXPECT_LT(tried, kSamples);
}

TEST(Loader, EndsInTheMiddleOfAPassOfManyWorkers) {
  for (int round = 0; round < 50; ++round) {
    const CountingSource source(1000);
    Loader loader(source, first(1000),
                  {.batch_size = 16, .prefetch = 3, .workers = 4});
    for (int taken = 0; taken < round % 5; ++taken) loader.next(1min);
  }
}

// In a process with room for the stacks of a few threads more.
[[noreturn]] void load_without_room_for_threads() {
  if (!limit_address_space(std::uint64_t{1} << 28)) std::_Exit(2);
  const CountingSource source(10);
  try {
    Loader(source, first(10), {.workers = 1000});
  } catch (const SystemError& error) {
    std::cerr << error.what() << std::endl;
    std::_Exit(error.error_number() == EAGAIN ? 0 : 3);
  }
  std::_Exit(4);
}

TEST(Loader, SaysHowManyWorkersCouldStart) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
  EXPECT_EXIT(load_without_room_for_threads(), testing::ExitedWithCode(0),
              "cannot start worker [0-9]+ of the 1000 that read samples");
}

TEST(Loader, CountsTheTimeThatTheConsumerWaits) {
  Gate gate;
  const CountingSource source(1, [&](std::int64_t) { gate.wait(); });
  Loader loader(source, first(1));
  EXPECT_EQ(loader.waited(), 0ns);
  const auto start = std::chrono::steady_clock::now();
  // A deadline is counted from its creation, which comes before the wait: a
  // call may wait for less than the time that it is given.
  while (loader.waited() < 5ms) EXPECT_THROW(loader.next(5ms), Timeout);
  EXPECT_LE(loader.waited(), std::chrono::steady_clock::now() - start);
  gate.open();
  loader.next(1min);
  const auto waited = loader.waited();
  loader.next(1min);
  EXPECT_EQ(loader.waited(), waited);
}

TEST(Loader, LeavesTheSmallerLastBatchOutOnRequest) {
  const CountingSource source(10);
  Loader loader(source, first(5), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(loader.batch_count(), 2);
  EXPECT_THAT(drain(loader), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  Loader whole(source, first(4), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(drain(whole).size(), 2u);
}

TEST(Loader, FillsImagesForTheEpoch) {
  const CountingSource source(10);
  Loader loader(source, {7, 3}, {.batch_size = 2, .epoch = 5});
  const auto batch = loader.next(1min);
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->count(), 2);
  EXPECT_EQ(batch->shape(), (ImageShape{1, 2, 3}));
  ASSERT_EQ(batch->images().size(), 12u);
  for (std::size_t i = 0; i < 12; ++i)
    EXPECT_EQ(batch->images()[i], CountingSource::value(i < 6 ? 7 : 3, 5));
}

TEST(Loader, HandsOutPixelsOnRequest) {
  const PixelSource source;
  Loader loader(
      source, {7, 3, 9},
      {.batch_size = 2, .epoch = 5, .elements = ImageElements::kPixels});
  const auto batch = loader.next(1min);
  EXPECT_EQ(batch->elements(), ImageElements::kPixels);
  EXPECT_TRUE(batch->images().empty());
  EXPECT_THAT(batch->pixels(), ElementsAre(12, 12, 12, 12, 12, 12,  //
                                           8, 8, 8, 8, 8, 8));
  EXPECT_THAT(labels_of(*batch), ElementsAre(7, 3));
  const auto last = loader.next(1min);
  EXPECT_EQ(last->count(), 1);
  EXPECT_THAT(last->pixels(), ElementsAre(14, 14, 14, 14, 14, 14));
}

TEST(Loader, HandsOutNumbersOfPixelsUnlessAskedForThese) {
  const PixelSource source;
  Loader loader(source, {7});
  const auto batch = loader.next(1min);
  EXPECT_EQ(batch->elements(), ImageElements::kFloat32);
  EXPECT_TRUE(batch->pixels().empty());
  EXPECT_THAT(batch->images(), ElementsAre(3.5, 3.5, 3.5, 3.5, 3.5, 3.5));
}

TEST(Loader, RefusesPixelsOfASourceThatHasNone) {
  const CountingSource source(10);
  EXPECT_THROW(Loader(source, first(10), {.elements = ImageElements::kPixels}),
               InvalidArgument);
  std::vector<std::uint8_t> image(6);
  EXPECT_THROW(source.read_pixels(0, 0, image), InvalidArgument);
}

TEST(Loader, OfNoIndicesIsOverAtOnce) {
  const CountingSource source(10);
  Loader loader(source, {});
  EXPECT_EQ(loader.batch_count(), 0);
  EXPECT_FALSE(loader.next(1min).has_value());
}

TEST(Loader, StaysOverAtTheEnd) {
  const CountingSource source(1);
  Loader loader(source, {0});
  EXPECT_TRUE(loader.next(1min).has_value());
  EXPECT_FALSE(loader.next(1min).has_value());
  EXPECT_FALSE(loader.next(0s).has_value());
}

TEST(Loader, PreparesNoMoreBatchesThanItMay) {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t begun = 0;  // batches with a requested sample
  const CountingSource source(100, [&](std::int64_t index) {
    const std::lock_guard lock(mutex);
    begun = index / 2 + 1;
    changed.notify_all();
  });
  Loader loader(source, first(100), {.batch_size = 2, .prefetch = 2});
  for (std::int64_t taken = 0; taken <= 48; ++taken) {
    {
      // A thread that starts more batches than it may shows here or in one of
      // the next rounds.
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return begun >= taken + 2; });
      ASSERT_EQ(begun, taken + 2);
    }
    loader.next(1min);
  }
}

TEST(Loader, PreparesAheadOfTheConsumer) {
  Gate third_batch;
  const CountingSource source(100, [&](std::int64_t index) {
    if (index == 4) third_batch.wait();
  });
  Loader loader(source, first(100), {.batch_size = 2, .prefetch = 3});
  third_batch.wait_for_somebody();
  EXPECT_EQ(source.samples_read.load(), 4);
  third_batch.open();
}

TEST(Loader, RecyclesTheMemoryOfBatches) {
  const CountingSource source(100);
  Loader loader(source, first(100), {.batch_size = 2, .prefetch = 2});
  std::set<const float*> addresses;
  while (const auto batch = loader.next(1min))
    addresses.insert(batch->images().data());
  // One held batch, and two that are ready or being filled.
  EXPECT_LE(addresses.size(), 3u);
}

TEST(Loader, GoesOnWhileBatchesAreKept) {
  const CountingSource source(40);
  Loader loader(source, first(40), {.batch_size = 2, .prefetch = 1});
  std::vector<Batch> kept;
  while (auto batch = loader.next(1min)) kept.push_back(std::move(*batch));
  ASSERT_EQ(kept.size(), 20u);
  for (std::int64_t i = 0; i < 20; ++i)
    EXPECT_THAT(labels_of(kept[static_cast<std::size_t>(i)]),
                ElementsAre(2 * i, 2 * i + 1));
}

TEST(Loader, MayEndBeforeItsBatches) {
  const CountingSource source(10);
  std::optional<Batch> batch;
  {
    Loader loader(source, first(10), {.batch_size = 2});
    batch = loader.next(1min);
  }
  EXPECT_THAT(labels_of(*batch), ElementsAre(0, 1));
  EXPECT_EQ(batch->images()[11], 1.0f);
}

TEST(Loader, ThrowsWhatTheSourceThrewAfterTheBatchesBeforeIt) {
  const CountingSource source(10, [](std::int64_t index) {
    if (index == 5) throw std::runtime_error("sample 5 is broken");
  });
  Loader loader(source, first(10), {.batch_size = 2, .prefetch = 9});
  EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAre(0, 1));
  EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAre(2, 3));
  for (int again = 0; again < 2; ++again) {
    try {
      loader.next(1min);
      FAIL() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "sample 5 is broken");
    }
  }
}

TEST(Loader, TimesOutWhenABatchIsLateAndCanBeAskedAgain) {
  Gate gate;
  const CountingSource source(2, [&](std::int64_t) { gate.wait(); });
  Loader loader(source, first(2), {.batch_size = 2});
  try {
    loader.next(1ms);
    ADD_FAILURE() << "no error";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("batch 1 of 1"));
  }
  gate.open();
  EXPECT_THAT(labels_of(*loader.next(1min)), ElementsAre(0, 1));
}

TEST(Loader, EndsEarlyWithoutReadingTheRest) {
  // Samples that cost about a microsecond: the whole pass is a second.
  constexpr std::int64_t kSamples = 1'000'000;
  Gate begun;
  begun.open();
  const CountingSource source(kSamples, [&](std::int64_t index) {
    if (index == 0) begun.wait();
    for (volatile int work = 0; work < 500;) work = work + 1;
  });
  {
    Loader loader(source, first(kSamples), {.batch_size = kSamples});
    begun.wait_for_somebody();
  }
  EXPECT_LT(source.samples_read.load(), kSamples);
}

TEST(Loader, EndsWhileItsWorkersWaitForRoom) {
  for (int round = 0; round < 50; ++round) {
    const CountingSource source(100);
    Loader loader(source, first(100), {.batch_size = 1, .prefetch = 1});
    if (round % 2 == 0) loader.next(1min);
  }
}

TEST(Loader, TakesBatchesBackOnAnyThread) {
  const CountingSource source(200);
  Loader loader(source, first(200), {.batch_size = 2});
  std::vector<std::thread> threads;
  while (auto batch = loader.next(1min))
    threads.emplace_back([held = std::move(*batch)] {
      EXPECT_EQ(held.labels()[0] + 1, held.labels()[1]);
    });
  for (std::thread& thread : threads) thread.join();
}

// Whether a forked process that does `act` ends within the deadline of its
// alarm.
bool ends_in_a_fork(const std::function<void()>& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    act();
    std::_Exit(0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

// A worker of the parent often holds the mutex at the fork.
TEST(Loader, HangsNoForkedProcessThatDropsABatchOrAsksForOne) {
  const CountingSource source(1'000'000);
  Loader loader(source, first(1'000'000),
                {.batch_size = 1, .prefetch = 64, .workers = 4});
  for (int i = 0; i < 100; ++i) {
    auto batch = loader.next(1min);
    ASSERT_TRUE(ends_in_a_fork([&] { batch.reset(); }));
    ASSERT_TRUE(ends_in_a_fork([&] {
      try {
        loader.next(Deadline::never());
      } catch (const InvalidArgument&) {
        return;
      }
      std::_Exit(1);
    }));
  }
}

TEST(Loader, RefusesShapesThatNoBatchCanHave) {
  class Shaped final : public SampleSource {
   public:
    explicit Shaped(ImageShape shape) : shape_(shape) {}
    std::int64_t size() const override { return 1; }
    ImageShape shape() const override { return shape_; }
    std::int64_t read(std::int64_t, std::uint64_t,
                      std::span<float>) const override {
      return 0;
    }

   private:
    ImageShape shape_;
  };
  constexpr std::int64_t kLong = std::int64_t{1} << 32;
  for (const ImageShape& shape :
       {ImageShape{1, kLong, kLong}, ImageShape{-1, 2, 2}, ImageShape{1, 0, 2}})
    EXPECT_THROW(Loader(Shaped(shape), {0}), InvalidArgument);
}

TEST(Loader, RefusesOptionsOutOfRange) {
  const CountingSource source(10);
  const auto refuses = [&](const LoaderOptions& options) {
    EXPECT_THROW(Loader(source, first(10), options), InvalidArgument);
  };
  refuses({.batch_size = 0});
  refuses({.batch_size = -1});
  refuses({.prefetch = 0});
  refuses({.workers = 0});
  refuses({.workers = 1025});
  refuses({.max_broken = -1});
}

TEST(Loader, RefusesIndicesThatTheSourceDoesNotHave) {
  const CountingSource source(10);
  EXPECT_THROW(Loader(source, {0, 10}), InvalidArgument);
  EXPECT_THROW(Loader(source, {-1}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
