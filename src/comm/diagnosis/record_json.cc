#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "src/comm/diagnosis/record.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep record";
constexpr int kVersion = 1;
// More than a rank of any job has; prevents a hostile file from using all
// memory.
constexpr std::size_t kMostEntries = 100'000;
constexpr int kMostRanks = 1'000'000;

constexpr std::array kAllKinds{
    OperationKind::kBarrier,   OperationKind::kBroadcast,
    OperationKind::kAllReduce, OperationKind::kAllGather,
    OperationKind::kReduce,    OperationKind::kGather,
    OperationKind::kScatter,   OperationKind::kReduceScatter,
    OperationKind::kAllToAll,  OperationKind::kSend,
    OperationKind::kReceive,   OperationKind::kShardedUpdate,
    OperationKind::kReplay};
constexpr std::array kAllStates{OperationState::kStarted,
                                OperationState::kCompleted,
                                OperationState::kFailed};

// The value of `known` that is called `name`.
template <class Value>
Value named(std::string_view what, std::span<const Value> known,
            const std::string& name) {
  for (const Value value : known)
    if (name_of(value) == name) return value;
  throw InvalidArgument(fmt::format("unknown {} \"{}\"", what, name));
}

// A number that must fit its field; JSON's own conversion would truncate it.
template <class Number>
void take(const Json& object, const char* name, Number& number) {
  const auto found = object.find(name);
  if (found == object.end()) return;
  const Json& field = *found;
  const bool fits = field.is_number_unsigned()
                        ? std::in_range<Number>(field.get<std::uint64_t>())
                        : field.is_number_integer() &&
                              std::in_range<Number>(field.get<std::int64_t>());
  if (!fits)
    throw InvalidArgument(
        fmt::format("the field \"{}\" is out of range", name));
  number = field.get<Number>();
}

void take(const Json& object, const char* name, double& number) {
  if (object.contains(name)) number = object.at(name).get<double>();
}

void take(const Json& object, const char* name, bool& flag) {
  if (object.contains(name)) flag = object.at(name).get<bool>();
}

void take(const Json& object, const char* name, std::string& text) {
  if (object.contains(name)) text = object.at(name).get<std::string>();
}

void take(const Json& object, const char* name, std::vector<int>& numbers) {
  const auto found = object.find(name);
  if (found == object.end()) return;
  for (const Json& number : found->get_ref<const Json::array_t&>()) {
    const auto value = number.get<std::int64_t>();
    if (!std::in_range<int>(value))
      throw InvalidArgument("a rank is out of range");
    numbers.push_back(static_cast<int>(value));
  }
}

Json to_json(const OperationRecord& operation) {
  const Signature& signature = operation.signature;
  const auto kind = static_cast<OperationKind>(signature.kind);
  Json object;
  object["number"] = operation.number;
  object["group"] = operation.group;
  object["sequence"] = signature.sequence;
  object["kind"] = name_of(kind);
  object["state"] = name_of(operation.state);
  object["elements"] = signature.elements;
  object["type"] = name_of(static_cast<DataType>(signature.type));
  object["buffers"] = signature.buffers;
  object["layout"] = signature.layout;
  if (signature.division != 0) object["one_a_rank"] = true;
  object["reduction"] = name_of(static_cast<ReduceOp>(signature.reduction));
  object["root"] = signature.root;
  if (is_point_to_point(kind)) {
    object["peer"] = operation.peer;
    object["tag"] = operation.tag;
  }
  if (!operation.label.empty()) object["place"] = operation.label;
  object["started_at"] = operation.started_at;
  if (operation.state != OperationState::kStarted)
    object["ended_at"] = operation.ended_at;
  if (operation.awaited) object["awaited"] = true;
  return object;
}

OperationRecord to_operation(const Json& object) {
  OperationRecord operation;
  Signature& signature = operation.signature;
  const auto text = [&](const char* name) {
    return object.at(name).get<std::string>();
  };
  const auto number_of = [](auto value) {
    return static_cast<std::uint8_t>(value);
  };
  take(object, "number", operation.number);
  take(object, "group", operation.group);
  take(object, "sequence", signature.sequence);
  take(object, "elements", signature.elements);
  take(object, "buffers", signature.buffers);
  take(object, "layout", signature.layout);
  take(object, "root", signature.root);
  take(object, "peer", operation.peer);
  take(object, "tag", operation.tag);
  take(object, "place", operation.label);
  take(object, "started_at", operation.started_at);
  take(object, "ended_at", operation.ended_at);
  take(object, "awaited", operation.awaited);
  bool one_a_rank = false;
  take(object, "one_a_rank", one_a_rank);
  signature.division =
      number_of(one_a_rank ? Division::kPerRank : Division::kEven);
  signature.kind = number_of(named(
      "operation", std::span<const OperationKind>(kAllKinds), text("kind")));
  signature.type = number_of(named(
      "data type", std::span<const DataType>(kAllDataTypes), text("type")));
  signature.reduction =
      number_of(named("reduction", std::span<const ReduceOp>(kAllReductions),
                      text("reduction")));
  operation.state = named("state", std::span<const OperationState>(kAllStates),
                          text("state"));
  return operation;
}

Json to_json(const GroupRecord& group) {
  Json object;
  object["id"] = group.id;
  object["name"] = group.name;
  object["backend"] = group.backend;
  object["rank"] = group.rank;
  object["size"] = group.size;
  if (!group.members.empty()) object["members"] = group.members;
  if (group.left) object["left"] = true;
  object["last_started"] = group.last_started;
  object["last_completed"] = group.last_completed;
  return object;
}

GroupRecord to_group(const Json& object) {
  GroupRecord group;
  take(object, "id", group.id);
  take(object, "name", group.name);
  take(object, "backend", group.backend);
  take(object, "rank", group.rank);
  take(object, "size", group.size);
  take(object, "members", group.members);
  take(object, "left", group.left);
  take(object, "last_started", group.last_started);
  take(object, "last_completed", group.last_completed);
  if (group.size < 1 || group.size > kMostRanks || group.rank < 0 ||
      group.rank >= group.size ||
      (!group.members.empty() &&
       group.members.size() != static_cast<std::size_t>(group.size)))
    throw InvalidArgument(
        fmt::format("the group \"{}\" is inconsistent", group.name));
  return group;
}

Json to_json(const FailureRecord& failure) {
  Json object;
  object["at"] = failure.at;
  object["group"] = failure.group;
  object["operation"] = failure.operation;
  object["type"] = failure.type;
  object["message"] = failure.message;
  if (failure.culprit >= 0) object["culprit"] = failure.culprit;
  return object;
}

FailureRecord to_failure(const Json& object) {
  FailureRecord failure;
  take(object, "at", failure.at);
  take(object, "group", failure.group);
  take(object, "operation", failure.operation);
  take(object, "type", failure.type);
  take(object, "message", failure.message);
  take(object, "culprit", failure.culprit);
  return failure;
}

template <class Item>
void put_list(Json& object, const char* name, const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  object[name] = std::move(list);
}

template <class Convert>
auto take_list(const Json& object, const char* name, Convert convert) {
  std::vector<decltype(convert(object))> items;
  const auto& list = object.at(name).get_ref<const Json::array_t&>();
  if (list.size() > kMostEntries)
    throw InvalidArgument(fmt::format("the list \"{}\" is too long", name));
  for (const Json& item : list) items.push_back(convert(item));
  return items;
}

RankRecord from_json(const Json& object) {
  if (object.at("format").get<std::string>() != kFormat)
    throw InvalidArgument("its format is not \"lockstep record\"");
  int version = 0;
  take(object, "version", version);
  if (version != kVersion)
    throw InvalidArgument(fmt::format(
        "it has version {} of the format, expected {}", version, kVersion));
  RankRecord record;
  take(object, "lockstep", record.version);
  take(object, "job", record.job);
  take(object, "rank", record.rank);
  take(object, "world_size", record.world_size);
  take(object, "host", record.host);
  take(object, "pid", record.pid);
  take(object, "written_at", record.written_at);
  take(object, "reason", record.reason);
  record.failures = take_list(object, "failures", to_failure);
  record.groups = take_list(object, "groups", to_group);
  record.operations = take_list(object, "operations", to_operation);
  if (record.rank < 0 || record.rank >= record.world_size ||
      record.world_size > kMostRanks)
    throw InvalidArgument(fmt::format("rank {} of {} is invalid", record.rank,
                                      record.world_size));
  return record;
}

}  // namespace

std::string encode_record(const RankRecord& record) {
  Json object;
  object["format"] = kFormat;
  object["version"] = kVersion;
  object["lockstep"] = record.version;
  if (!record.job.empty()) object["job"] = record.job;
  object["rank"] = record.rank;
  object["world_size"] = record.world_size;
  object["host"] = record.host;
  object["pid"] = record.pid;
  object["written_at"] = record.written_at;
  object["reason"] = record.reason;
  put_list(object, "failures", record.failures);
  put_list(object, "groups", record.groups);
  put_list(object, "operations", record.operations);
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

RankRecord decode_record(std::string_view text) {
  try {
    return from_json(Json::parse(text));
  } catch (const std::exception& error) {  // from Json and from this file
    throw InvalidArgument(fmt::format("not a record: {}", error.what()));
  }
}

}  // namespace lockstep
