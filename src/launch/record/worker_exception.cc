#include "src/launch/record/worker_exception.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "src/base/printable.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20U;
constexpr std::size_t kMostMessageBytes = std::size_t{1} << 12U;
constexpr std::size_t kMostTracebackBytes = std::size_t{1} << 16U;

// Empty where `object` has no such text.
std::string text_in(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

// The parts that stay are whole characters.
std::string beginning_of(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  while (continues_character(text[most])) --most;
  return text.substr(0, most);
}

std::string end_of(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t start = text.size() - most;
  while (start < text.size() && continues_character(text[start])) ++start;
  return text.substr(start);
}

}  // namespace

std::optional<WorkerException> read_worker_exception(
    const std::filesystem::path& file) {
  const nlohmann::json record = nlohmann::json::parse(
      read_regular_file(file, kMostFileBytes), nullptr, false);
  if (!record.is_object() || !record.contains("message")) return std::nullopt;
  // A text, or an object with the text and more.
  const nlohmann::json& content = record["message"];
  const std::string message =
      text_in(content.is_string() ? record : content, "message");
  if (message.empty()) return std::nullopt;
  std::string traceback;
  if (content.is_object() && content.contains("extraInfo"))
    traceback = text_in(content["extraInfo"], "py_callstack");
  return WorkerException{
      .message = beginning_of(message, kMostMessageBytes),
      .traceback = end_of(std::move(traceback), kMostTracebackBytes)};
}

}  // namespace lockstep
