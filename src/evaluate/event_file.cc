#include "lockstep/evaluate/event_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <protozero/pbf_builder.hpp>

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

// TensorBoard reads files in the order of their names, which begin with the
// time.
AppendedFile make_file(const std::filesystem::path& folder) {
  std::array<char, 16> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%010lld",
                static_cast<long long>(now()));
  const std::string stem = std::string("events.out.tfevents.") +
                           seconds.data() + "." + own_host_name() + "." +
                           std::to_string(::getpid()) + ".";
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
