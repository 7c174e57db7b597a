#include "lockstep/evaluate/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <protozero/pbf_builder.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/base/printable.h"
#include "src/evaluate/framed_record.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

// Field numbers of TensorFlow's messages, as far as used.
enum class EventField : protozero::pbf_tag_type {
  kWallTime = 1,  // double, seconds since 1970
  kStep = 2,      // int64
  kFileVersion = 3,
  kSummary = 5,
  kSessionLog = 7
};
enum class SummaryField : protozero::pbf_tag_type { kValue = 1 };
enum class ValueField : protozero::pbf_tag_type {
  kTag = 1,
  kSimpleValue = 2  // float
};
enum class SessionField : protozero::pbf_tag_type { kStatus = 1 };
constexpr std::int32_t kSessionStarts = 1;

using EventBuilder = protozero::pbf_builder<EventField>;

// Seconds since 1970.
double now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::size_t kDigits = 10;

// The time in the name of an event file; 0 for all other names.
std::int64_t seconds_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return 0;
  name = name.substr(kPrefix.size(), kDigits);
  std::int64_t seconds = 0;
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), seconds);
  return error == std::errc() && end == name.data() + kDigits ? seconds : 0;
}

// TensorBoard reads files in the order of their names, which begin with the
// time. A run may resume within a second of the start of the one before it, or
// on a host whose clock is behind: its file has the time after theirs.
std::int64_t time_after_all(const std::filesystem::path& folder) {
  constexpr std::int64_t kLast = 9'999'999'999;
  auto seconds = static_cast<std::int64_t>(now());
  std::error_code error;  // the new file's error is the one that counts
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error))
    seconds =
        std::max(seconds, seconds_in(entry->path().filename().native()) + 1);
  return std::min(seconds, kLast);
}

AppendedFile make_file(const std::filesystem::path& folder) {
  std::string seconds = std::to_string(time_after_all(folder));
  seconds.insert(0, kDigits - std::min(kDigits, seconds.size()), '0');
  const std::string stem = std::string(kPrefix) + seconds + "." +
                           own_host_name() + "." + std::to_string(::getpid()) +
                           ".";
  for (int number = 0;; ++number) try {
      return AppendedFile(folder / (stem + std::to_string(number)),
                          AppendedFile::Existing::kRefuse);
    } catch (const SystemError& error) {
      if (error.error_number() != EEXIST) throw;
    }
}

// A reader stops at a record that is not a valid message.
void check_tag(const std::string& tag) {
  if (!tag.empty() && is_utf8(tag)) return;
  throw InvalidArgument(
      "an event file cannot have a curve named \"" + printable(tag) +
      "\": " + (tag.empty() ? "the tag is empty" : "the tag is not UTF-8") +
      "\n  next:    give Scalar::tag another text, such as \"train/loss\"");
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder)
    : file_(make_file(folder)) {
  std::string event;
  EventBuilder builder(event);
  builder.add_double(EventField::kWallTime, now());
  builder.add_string(EventField::kFileVersion, "brain.Event:2");
  file_.append(framed_record(event));
}

void EventFile::begin_at(std::int64_t step) {
  std::string session;
  protozero::pbf_builder<SessionField>(session).add_enum(SessionField::kStatus,
                                                         kSessionStarts);
  std::string event;
  EventBuilder builder(event);
  builder.add_double(EventField::kWallTime, now());
  // TensorBoard discards the points of this step, too.
  builder.add_int64(EventField::kStep, step + 1);
  builder.add_message(EventField::kSessionLog, session);
  file_.append(framed_record(event));
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  for (const Scalar& scalar : scalars) check_tag(scalar.tag);
  std::string summary;
  protozero::pbf_builder<SummaryField> values(summary);
  for (const Scalar& scalar : scalars) {
    std::string value;
    protozero::pbf_builder<ValueField> builder(value);
    builder.add_string(ValueField::kTag, scalar.tag);
    builder.add_float(ValueField::kSimpleValue,
                      static_cast<float>(scalar.value));
    values.add_message(SummaryField::kValue, value);
  }
  std::string event;
  EventBuilder builder(event);
  builder.add_double(EventField::kWallTime, now());
  builder.add_int64(EventField::kStep, step);
  builder.add_message(EventField::kSummary, summary);
  file_.append(framed_record(event));
}

}  // namespace lockstep
