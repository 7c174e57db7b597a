#include "src/launch/record/job_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep job";
constexpr int kVersion = 1;

int whole_number(const Json& object, const char* name) {
  const Json& field = object.at(name);
  if (!field.is_number_integer() ||
      !std::in_range<int>(field.get<std::int64_t>()))
    throw InvalidArgument(
        fmt::format("the field \"{}\" is out of range", name));
  return field.get<int>();
}

JobRecord from_json(const Json& object) {
  if (object.at("format").get<std::string>() != kFormat)
    throw InvalidArgument("it is some other JSON file");
  if (const int version = whole_number(object, "version"); version != kVersion)
    throw InvalidArgument(
        fmt::format("it has version {} of the format, this is version {}",
                    version, kVersion));
  JobRecord record{.workers = whole_number(object, "workers"),
                   .rank = whole_number(object, "rank"),
                   .signal = whole_number(object, "signal"),
                   .exit_code = whole_number(object, "exit_code"),
                   .seconds = object.at("seconds").get<double>(),
                   .lost_a_peer = object.value("lost_a_peer", false),
                   .stopped = object.value("stopped", std::vector<int>{})};
  if (record.rank < 0 || record.rank >= record.workers)
    throw InvalidArgument(
        fmt::format("rank {} of {} cannot be", record.rank, record.workers));
  return record;
}

}  // namespace

std::string encode_job_record(const JobRecord& record) {
  Json object;
  object["format"] = kFormat;
  object["version"] = kVersion;
  object["workers"] = record.workers;
  object["rank"] = record.rank;
  object["signal"] = record.signal;
  object["exit_code"] = record.exit_code;
  object["seconds"] = record.seconds;
  object["lost_a_peer"] = record.lost_a_peer;
  object["stopped"] = record.stopped;
  return object.dump(1) + "\n";
}

JobRecord decode_job_record(std::string_view text) {
  try {
    return from_json(Json::parse(text));
  } catch (const std::exception& error) {  // from Json, and our own
    throw InvalidArgument(fmt::format("not a job's record: {}", error.what()));
  }
}

void write_job_record(const std::filesystem::path& folder,
                      const JobRecord& record) {
  replace_text_file(folder / kJobRecordName, encode_job_record(record));
}

}  // namespace lockstep
