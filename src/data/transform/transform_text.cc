#include "src/data/transform/transform_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/transform/check_transform.h"
#include "src/data/transform/text_value.h"
#include "src/data/transform/transform_fields.h"

namespace lockstep::transforms {
namespace {

struct Argument {
  std::string_view name{};  // "" where only the position says which it is
  Value value{};
};

struct Call {
  std::string_view name{};
  std::size_t offset = 0;
  std::vector<Argument> arguments{};
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<Call> read() {
    std::vector<Call> calls;
    do calls.push_back(call());
    while (take('|'));
    skip_spaces();
    if (at_ < text_.size()) fail(at_, "\"|\" or the end");
    return calls;
  }

  [[noreturn]] void fail(std::size_t offset, std::string_view expected) const {
    const std::string_view rest = text_.substr(std::min(offset, text_.size()));
    throw InvalidArgument(fmt::format(
        "cannot read the transforms \"{}\": expected {} at character {}, found "
        "{}",
        text_, expected, offset + 1,
        rest.empty() ? std::string("the end")
                     : fmt::format("\"{}\"", rest.substr(0, 20))));
  }

 private:
  Call call() {
    Call made;
    skip_spaces();
    made.offset = at_;
    made.name = name("the name of a transform");
    if (!take('(') || take(')')) return made;
    do made.arguments.push_back(argument());
    while (take(','));
    if (!take(')')) fail(at_, "\",\" or \")\"");
    return made;
  }

  Argument argument() {
    skip_spaces();
    const std::size_t start = at_;
    if (starts_name()) {
      const std::string_view first = name("a name");
      if (!take('=')) return {.value = {.is = first, .offset = start}};
      return {.name = first, .value = value()};
    }
    return {.value = value()};
  }

  Value value() {
    skip_spaces();
    const std::size_t start = at_;
    if (starts_name()) return {.is = name("a name"), .offset = start};
    for (const auto& [open, close] : {std::pair('(', ')'), std::pair('[', ']')})
      if (take(open)) return {.is = numbers(close), .offset = start};
    return {.is = number(), .offset = start};
  }

  // A list but, as in Python, (4) is a number.
  decltype(Value::is) numbers(char close) {
    std::vector<double> found{number()};
    bool is_list = close == ']';
    while (take(',')) {
      is_list = true;
      skip_spaces();
      if (at_ < text_.size() && text_[at_] == close) break;
      found.push_back(number());
    }
    if (!take(close)) fail(at_, fmt::format("\",\" or \"{}\"", close));
    if (!is_list) return found.front();
    return found;
  }

  double number() {
    skip_spaces();
    double value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] =
        std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) fail(at_, "a number");
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  bool starts_name() const {
    return at_ < text_.size() &&
           (std::isalpha(static_cast<unsigned char>(text_[at_])) != 0 ||
            text_[at_] == '_');
  }

  std::string_view name(std::string_view expected) {
    if (!starts_name()) fail(at_, expected);
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
            text_[at_] == '_'))
      ++at_;
    return text_.substr(start, at_ - start);
  }

  bool take(char wanted) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void skip_spaces() {
    while (at_ < text_.size() &&
           std::isspace(static_cast<unsigned char>(text_[at_])) != 0)
      ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The transform of this name with its default arguments.
template <std::size_t kIndex = 0>
std::optional<Transform> transform_named(std::string_view name) {
  if constexpr (kIndex == std::variant_size_v<Transform>) {
    return std::nullopt;
  } else {
    Transform made(std::in_place_index<kIndex>);
    if (name_of(made) == name) return made;
    return transform_named<kIndex + 1>(name);
  }
}

template <std::size_t... kIndex>
std::vector<std::string_view> all_names(std::index_sequence<kIndex...>) {
  return {name_of(Transform(std::in_place_index<kIndex>))..., "hflip", "vflip"};
}

// The value that a call gives for the field `name` at `position`; marks it as
// used.
const Value* value_of(const Call& call, std::string_view name,
                      std::size_t position, std::vector<bool>& used) {
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const Argument& argument = call.arguments[i];
    if (argument.name.empty() ? i != position : argument.name != name) continue;
    if (used[i]) continue;
    used[i] = true;
    return &argument.value;
  }
  return nullptr;
}

void set_fields(const Reader& reader, const Call& call, Transform& transform) {
  std::vector<bool> used(call.arguments.size(), false);
  std::vector<std::string_view> names;
  std::visit(
      [&](auto& one) {
        for_each_field(one, [&](std::string_view name, auto&& member) {
          const Value* value = value_of(call, name, names.size(), used);
          names.push_back(name);
          if (value == nullptr) return;
          const std::string_view expected = convert(*value, member);
          if (!expected.empty())
            reader.fail(value->offset,
                        fmt::format("{}'s {}: {}", call.name, name, expected));
        });
      },
      transform);
  for (std::size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      reader.fail(call.offset, fmt::format("each argument once, of {}({})",
                                           call.name, fmt::join(names, ", ")));
}

Transform bind(const Reader& reader, const Call& call) {
  std::string_view name = call.name;
  if (name == "hflip") name = "random_horizontal_flip";
  if (name == "vflip") name = "random_vertical_flip";
  std::optional<Transform> made = transform_named(name);
  if (!made)
    reader.fail(call.offset,
                fmt::format("one of {}", fmt::join(known_names(), ", ")));
  if (std::holds_alternative<Normalize>(*made) && call.arguments.size() == 1) {
    const std::string_view* value = call.arguments[0].value.name();
    if (value != nullptr && *value == "imagenet") return imagenet_normalize();
  }
  set_fields(reader, call, *made);
  return *made;
}

template <class T>
std::vector<std::pair<std::string_view, std::string>> fields_of(
    const T& transform) {
  std::vector<std::pair<std::string_view, std::string>> fields;
  for_each_field(transform, [&](std::string_view name, const auto& member) {
    fields.emplace_back(name, printed(member));
  });
  return fields;
}

}  // namespace

std::vector<std::string_view> known_names() {
  return all_names(std::make_index_sequence<std::variant_size_v<Transform>>());
}

std::vector<Transform> parse(std::string_view text) {
  Reader reader(text);
  std::vector<Transform> transforms;
  for (const Call& call : reader.read())
    transforms.push_back(bind(reader, call));
  return transforms;
}

std::string print(const Transform& transform) {
  std::vector<std::string> given;
  std::visit(
      [&given](const auto& one) {
        const auto fields = fields_of(one);
        const auto usual = fields_of(std::remove_cvref_t<decltype(one)>{});
        for (std::size_t i = 0; i < fields.size(); ++i)
          if (fields[i].second != usual[i].second)
            given.push_back(
                fmt::format("{}={}", fields[i].first, fields[i].second));
      },
      transform);
  if (given.empty()) return std::string(name_of(transform));
  return fmt::format("{}({})", name_of(transform), fmt::join(given, ", "));
}

}  // namespace lockstep::transforms
