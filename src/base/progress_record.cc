#include "src/base/progress_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Names each field once, for both directions: `visit(name, member)`.
template <class Record, class Visit>
requires std::is_same_v<std::remove_const_t<Record>, StartRecord>
void for_each_field(Record& record, Visit visit) {
  visit("version", record.version);
  visit("ranks", record.ranks);
  visit("hosts", record.hosts);
  visit("backend", record.backend);
  visit("libtorch_version", record.libtorch_version);
  visit("dataset", record.dataset);
  visit("train_images", record.train_images);
  visit("test_images", record.test_images);
  visit("model", record.model);
  visit("parameters", record.parameters);
  visit("global_batch", record.global_batch);
  visit("batch_per_rank", record.batch_per_rank);
  visit("notes", record.notes);
}

template <class Record, class Visit>
requires std::is_same_v<std::remove_const_t<Record>, StepRecord>
void for_each_field(Record& record, Visit visit) {
  visit("epoch", record.epoch);
  visit("epochs", record.epochs);
  visit("step", record.step);
  visit("steps", record.steps);
  visit("loss", record.loss);
  visit("images_per_second", record.images_per_second);
  visit("seconds_left", record.seconds_left);
}

template <class Record, class Visit>
requires std::is_same_v<std::remove_const_t<Record>, EpochRecord>
void for_each_field(Record& record, Visit visit) {
  visit("epoch", record.epoch);
  visit("epochs", record.epochs);
  visit("train_loss", record.train_loss);
  visit("train_accuracy", record.train_accuracy);
  visit("test_accuracy", record.test_accuracy);
  visit("images_per_second", record.images_per_second);
  visit("seconds", record.seconds);
}

template <class Record, class Visit>
requires std::is_same_v<std::remove_const_t<Record>, EndRecord>
void for_each_field(Record& record, Visit visit) {
  visit("model_path", record.model_path);
  visit("test_accuracy", record.test_accuracy);
  visit("seconds", record.seconds);
  visit("notes", record.notes);
  visit("hints", record.hints);
}

constexpr const char* kind_of(const StartRecord&) { return "start"; }
constexpr const char* kind_of(const StepRecord&) { return "step"; }
constexpr const char* kind_of(const EpochRecord&) { return "epoch"; }
constexpr const char* kind_of(const EndRecord&) { return "end"; }

template <class Value>
void put(Json& object, const char* name, const Value& value) {
  object[name] = value;
}

void put(Json& object, const char* name, const std::optional<double>& value) {
  if (value) object[name] = *value;
}

template <class Value>
void take(const Json& field, Value& value) {
  value = field.get<Value>();
}

void take(const Json& field, double& value) {
  value = field.is_null() ? std::numeric_limits<double>::quiet_NaN()
                          : field.get<double>();
}

void take(const Json& field, std::optional<double>& value) {
  take(field, value.emplace());
}

// Optional numbers, and fields that earlier versions did not write.
template <class Value>
bool may_be_missing(std::string_view name, const Value&) {
  return std::is_same_v<Value, std::optional<double>> || name == "notes";
}

template <class Record>
Record from_json(const Json& object) {
  Record record;
  for_each_field(record, [&]<class Value>(const char* name, Value& value) {
    const auto field = object.find(name);
    if (field != object.end())
      take(*field, value);
    else if (!may_be_missing(name, value))
      throw InvalidArgument(fmt::format("the field \"{}\" is missing", name));
  });
  return record;
}

std::optional<ProgressRecord> from_line(std::string_view line) {
  const Json object = Json::parse(line);
  const auto kind = object.at("record").get<std::string>();
  if (kind == "start") return from_json<StartRecord>(object);
  if (kind == "step") return from_json<StepRecord>(object);
  if (kind == "epoch") return from_json<EpochRecord>(object);
  if (kind == "end") return from_json<EndRecord>(object);
  return std::nullopt;
}

}  // namespace

std::string encode_progress(const ProgressRecord& record) {
  Json object;
  std::visit(
      [&](const auto& known) {
        object["record"] = kind_of(known);
        for_each_field(known, [&](const char* name, const auto& value) {
          put(object, name, value);
        });
      },
      record);
  std::string line =
      object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (line.size() > kMaxProgressLineBytes)
    throw InvalidArgument(
        fmt::format("a progress record has {} bytes, at most {} are allowed: "
                    "shorten its texts",
                    line.size(), kMaxProgressLineBytes));
  return line;
}

std::optional<ProgressRecord> decode_progress(std::string_view line) {
  if (line.size() > kMaxProgressLineBytes)
    throw InvalidArgument("a line too long to be a progress record");
  try {
    return from_line(line);
  } catch (const std::exception& error) {  // from Json, and our own
    throw InvalidArgument(fmt::format("not a progress record: {}: {}",
                                      error.what(), line.substr(0, 200)));
  }
}

void write_progress(int descriptor, const ProgressRecord& record) {
  const std::string line = encode_progress(record);
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = ::write(descriptor, left.data(), left.size());
    if (written >= 0)
      left.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR)
      throw SystemError(
          fmt::format("could not write a progress record to descriptor {}",
                      descriptor),
          errno);
  }
}

}  // namespace lockstep
