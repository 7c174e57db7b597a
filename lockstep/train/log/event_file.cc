#include "lockstep/train/log/event_file.h"

#include <isa-l/crc.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <protozero/pbf_builder.hpp>

#include "lockstep/base/error.h"

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

// CRC-32C, rotated and offset, so that data which holds checksums can have one.
std::uint32_t masked_checksum(std::string_view data) {
  std::string bytes(data);  // the library needs them writable
  const std::uint32_t checksum =
      ~crc32_iscsi(reinterpret_cast<unsigned char*>(bytes.data()),
                   static_cast<int>(bytes.size()), ~std::uint32_t{0});
  return (checksum >> 15 | checksum << 17) + 0xa282ead8U;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i)
    bytes.push_back(static_cast<char>(number >> 8 * i & 0xff));
  return bytes;
}

// Seconds since 1970.
double now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// TensorBoard reads files in the order of their names, which begin with the
// time.
AppendedFile make_file(const std::filesystem::path& folder) {
  std::array<char, 16> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%010lld",
                static_cast<long long>(now()));
  const std::string stem = std::string("events.out.tfevents.") +
                           seconds.data() + "." + host_name() + "." +
                           std::to_string(::getpid()) + ".";
  for (int number = 0;; ++number) try {
      return {folder / (stem + std::to_string(number)),
              AppendedFile::Existing::kRefuse};
    } catch (const SystemError& error) {
      if (error.error_number() != EEXIST) throw;
    }
}

}  // namespace

std::string framed_record(std::string_view data) {
  const std::string length = little_endian(std::uint64_t{data.size()});
  return length + little_endian(masked_checksum(length)) + std::string(data) +
         little_endian(masked_checksum(data));
}

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
  builder.add_int64(EventField::kStep, step);
  builder.add_message(EventField::kSessionLog, session);
  file_.append(framed_record(event));
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
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
