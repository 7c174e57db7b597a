#include "src/faults/fault_note.h"

#include <array>
#include <nlohmann/json.hpp>
#include <system_error>

#include "src/base/name_table.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep fault note";
constexpr int kVersion = 1;
constexpr std::size_t kMostBytes = std::size_t{64} << 10U;

constexpr std::array<NamedValue<FaultNote::Kind>, 2> kKinds{
    {{"peer_gone", FaultNote::Kind::kPeerGone},
     {"peer_error", FaultNote::Kind::kPeerError}}};

FaultNote note_in(const Json& object) {
  if (object.at("format") != kFormat || object.at("version") != kVersion)
    throw InvalidArgument("another format");
  return {
      .kind =
          row_named(kKinds, "kind", object.at("kind").get<std::string>()).value,
      .culprit = object.value("culprit", -1),
      .operation = object.value("operation", std::string())};
}

}  // namespace

bool write_fault_note(const fs::path& file, const FaultNote& note) noexcept
    try {
  if (file.empty() || fs::exists(file)) return false;
  Json object;
  object["format"] = kFormat;
  object["version"] = kVersion;
  object["kind"] = name_of(kKinds, note.kind);
  if (note.culprit >= 0) object["culprit"] = note.culprit;
  object["operation"] = note.operation;
  replace_text_file(
      file, object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  return true;
} catch (const std::exception&) {
  return false;
}

void remove_fault_note(const fs::path& file) noexcept {
  std::error_code ignored;
  if (!file.empty()) fs::remove(file, ignored);
}

std::optional<FaultNote> read_fault_note(const fs::path& file) try {
  return note_in(Json::parse(read_regular_file(file, kMostBytes)));
} catch (const Json::exception&) {
  return std::nullopt;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace lockstep
