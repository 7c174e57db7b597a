#include "src/net/step_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using std::chrono::nanoseconds;

constexpr std::string_view kStepMagic = "lockstep steps\n\n";
constexpr std::uint64_t kStepVersion = 1;
constexpr std::uint64_t kRingEntries = 16;
constexpr std::size_t kStepSlotBytes = 1024;
constexpr std::uint64_t kMostThreads = std::uint64_t{1} << 32;

// The beginning of the file; slots follow, each of kStepSlotBytes bytes.
struct StepFileHeader {
  std::array<char, 16> magic{};
  std::uint64_t version = kStepVersion;
  std::uint64_t slots = 0;
};

}  // namespace

// These two are in no unnamed namespace, because StepWriter::Slot is not
// either.
//
// Totals at the end of a step, in nanoseconds.
template <class Number>
struct StepEntry {
  Number end, samples, waited, data;
};

template <class Number>
struct StepSlot {
  Number steps;  // the number of the newest entry, from 1; 0: none
  Number phase;
  Number waiting;  // threads that wait for other ranks
  std::array<Number, 5> reserved;
  std::array<StepEntry<Number>, kRingEntries> ring;  // entry n at n modulo 16
};

namespace {

using SlotCopy = StepSlot<std::uint64_t>;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(kStepMagic.size() == sizeof(StepFileHeader::magic));
static_assert(sizeof(SlotCopy) <= kStepSlotBytes);
static_assert(sizeof(StepSlot<std::atomic<std::uint64_t>>) == sizeof(SlotCopy));
static_assert(sizeof(StepFileHeader) <= kStepSlotBytes);

std::size_t offset_of(int slot) {
  return (static_cast<std::size_t>(slot) + 1) * kStepSlotBytes;
}

[[noreturn]] void fail_on_steps(const char* what, const std::string& path,
                                int reason) {
  throw SystemError(fmt::format("cannot {} {}", what, path), reason);
}

template <class Value>
bool read_at(int file, std::size_t offset, Value& value) {
  const ssize_t count =
      ::pread(file, &value, sizeof value, static_cast<off_t>(offset));
  return count == static_cast<ssize_t>(sizeof value);
}

bool is_step_file(const StepFileHeader& header) {
  return std::string_view(header.magic.data(), header.magic.size()) ==
             kStepMagic &&
         header.version == kStepVersion;
}

std::uint64_t ticks_of(nanoseconds time) {
  return static_cast<std::uint64_t>(time.count());
}

// Zero for totals that decrease, as only damaged slots have.
std::chrono::duration<double> between(std::uint64_t first, std::uint64_t last) {
  if (last <= first) return {};
  return std::chrono::duration<double>(static_cast<double>(last - first) / 1e9);
}

std::chrono::duration<double> median(
    std::vector<std::chrono::duration<double>> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// `oldest` is the first entry that was whole while the slot was copied.
StepWindow window_of(const SlotCopy& slot, std::uint64_t oldest) {
  const auto& first = slot.ring[oldest % kRingEntries];
  const auto& last = slot.ring[slot.steps % kRingEntries];
  std::vector<std::chrono::duration<double>> own, data;
  for (std::uint64_t n = oldest + 1; n <= slot.steps; ++n) {
    const auto& before = slot.ring[(n - 1) % kRingEntries];
    const auto& now = slot.ring[n % kRingEntries];
    own.push_back(std::max(
        between(before.end, now.end) - between(before.waited, now.waited),
        std::chrono::duration<double>()));
    data.push_back(between(before.data, now.data));
  }
  return {.steps = static_cast<int>(slot.steps - oldest),
          .samples =
              last.samples > first.samples ? last.samples - first.samples : 0,
          .time = between(first.end, last.end),
          .data = between(first.data, last.data),
          .waited = between(first.waited, last.waited),
          .own_per_step = median(std::move(own)),
          .data_per_step = median(std::move(data))};
}

// `newest` is the slot's number of steps after it was copied. Nothing if the
// rank has overwritten what was copied, or emptied the slot.
std::optional<RankSteps> evaluate(const SlotCopy& slot, std::uint64_t newest) {
  // A thread that left a wait of an earlier writer counts below zero.
  RankSteps result{.steps = slot.steps,
                   .waits = slot.waiting - 1 < kMostThreads};
  if (slot.phase <= static_cast<std::uint64_t>(StepPhase::kCompute))
    result.phase = static_cast<StepPhase>(slot.phase);
  if (slot.steps == 0) return result;
  // The rank may be writing entry newest + 1, in the place of the entry
  // newest + 1 - kRingEntries.
  const std::uint64_t oldest =
      newest >= kRingEntries ? newest - (kRingEntries - 2) : 1;
  // Any process of the user can write to the file.
  constexpr auto kMostSteps =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (newest > kMostSteps || newest < slot.steps || oldest > slot.steps)
    return std::nullopt;
  const std::uint64_t end = slot.ring[slot.steps % kRingEntries].end;
  constexpr auto kLatest = std::numeric_limits<std::int64_t>::max();
  if (end <= static_cast<std::uint64_t>(kLatest))
    result.last.emplace(nanoseconds(static_cast<std::int64_t>(end)));
  if (oldest < slot.steps) result.window = window_of(slot, oldest);
  return result;
}

}  // namespace

struct StepWriter::Slot : StepSlot<std::atomic<std::uint64_t>> {};

std::string_view name_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::kUnknown:
      return "";
    case StepPhase::kData:
      return "data";
    case StepPhase::kCompute:
      return "compute";
  }
  return "";
}

FileDescriptor create_step_memory(const std::string& path, int slots) {
  FileDescriptor file(::open(path.c_str(),
                             O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             S_IRUSR | S_IWUSR));
  if (!file) fail_on_steps("create", path, errno);
  // Past the limit on files' sizes the kernel would send SIGXFSZ.
  rlimit limit{};
  const bool fits = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
                    offset_of(slots) <= limit.rlim_cur;
  const int reason =
      fits ? ::posix_fallocate(file.get(), 0,
                               static_cast<off_t>(offset_of(slots)))
           : EFBIG;
  StepFileHeader header{.slots = static_cast<std::uint64_t>(slots)};
  std::memcpy(header.magic.data(), kStepMagic.data(), header.magic.size());
  const bool written =
      reason == 0 && ::pwrite(file.get(), &header, sizeof header, 0) ==
                         static_cast<ssize_t>(sizeof header);
  if (written) return file;
  ::unlink(path.c_str());
  fail_on_steps("reserve memory for", path, reason != 0 ? reason : errno);
}

StepWriter::StepWriter(const std::string& path, int slot) {
  const FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!file) fail_on_steps("open", path, errno);
  StepFileHeader header;
  struct stat status {};
  if (!read_at(file.get(), 0, header) || !is_step_file(header) ||
      ::fstat(file.get(), &status) != 0 || slot < 0 ||
      status.st_size < static_cast<off_t>(offset_of(slot) + kStepSlotBytes))
    throw InvalidArgument(
        fmt::format("{} has no slot {} for the steps of a rank", path, slot));
  bytes_ = offset_of(slot) + kStepSlotBytes;
  void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) fail_on_steps("map", path, errno);
  file_ = static_cast<std::byte*>(memory);
  slot_ = reinterpret_cast<Slot*>(file_ + offset_of(slot));
  slot_->steps.store(0);
  slot_->phase.store(0);
  slot_->waiting.store(0);
}

StepWriter::~StepWriter() { ::munmap(file_, bytes_); }

void StepWriter::begin_data(nanoseconds waited) {
  data_since_ = Clock::now();
  waited_before_data_ = waited;
}

void StepWriter::data_wanted(nanoseconds waited) {
  begin_data(waited);
  slot_->phase.store(static_cast<std::uint64_t>(StepPhase::kData),
                     std::memory_order_relaxed);
}

void StepWriter::data_ready(nanoseconds waited) {
  if (data_since_ != Clock::time_point())
    in_data_ += std::max<nanoseconds>(
        Clock::now() - data_since_ - (waited - waited_before_data_),
        nanoseconds());
  data_since_ = {};
  slot_->phase.store(static_cast<std::uint64_t>(StepPhase::kCompute),
                     std::memory_order_relaxed);
}

void StepWriter::step_done(std::int64_t samples, nanoseconds waited) {
  if (busy_.test_and_set(std::memory_order_acquire)) return;
  samples_ += static_cast<std::uint64_t>(samples);
  auto& entry = slot_->ring[++steps_ % kRingEntries];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  // A reader that finds a part of this entry finds steps_ - 1 after that.
  std::atomic_thread_fence(std::memory_order_release);
  entry.end.store(ticks_of(Clock::now().time_since_epoch()), kRelaxed);
  entry.samples.store(samples_, kRelaxed);
  entry.waited.store(ticks_of(waited), kRelaxed);
  entry.data.store(ticks_of(in_data_), kRelaxed);
  // Steps that Lockstep counts itself tell nothing of the program's data.
  const StepPhase phase =
      reported_by_program() ? StepPhase::kCompute : StepPhase::kUnknown;
  slot_->phase.store(static_cast<std::uint64_t>(phase), kRelaxed);
  slot_->steps.store(steps_, std::memory_order_release);
  busy_.clear(std::memory_order_release);
}

void StepWriter::enters_wait() noexcept {
  slot_->waiting.fetch_add(1, std::memory_order_relaxed);
}

void StepWriter::leaves_wait() noexcept {
  slot_->waiting.fetch_sub(1, std::memory_order_relaxed);
}

bool is_step_memory(const FileDescriptor& file) {
  StepFileHeader header;
  return read_at(file.get(), 0, header) && is_step_file(header);
}

std::optional<RankSteps> read_rank_steps(const FileDescriptor& file, int slot) {
  // A rank takes 15 steps during a copy only if the reader is suspended.
  constexpr int kAttempts = 8;
  StepFileHeader header;
  if (slot < 0 || !read_at(file.get(), 0, header) || !is_step_file(header))
    return std::nullopt;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SlotCopy copy{};
    std::uint64_t before = 0, after = 0;
    const std::size_t offset = offset_of(slot);
    if (!read_at(file.get(), offset, before) ||
        !read_at(file.get(), offset, copy) ||
        !read_at(file.get(), offset, after))
      return std::nullopt;
    copy.steps = before;  // all entries up to this one are whole
    if (auto result = evaluate(copy, after)) return result;
  }
  return std::nullopt;
}

}  // namespace lockstep
