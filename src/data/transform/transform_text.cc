#include "src/data/transform/transform_text.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/transform/check_transform.h"
#include "src/data/transform/draw.h"
#include "src/data/transform/operation.h"
#include "src/data/transform/transform_fields.h"

namespace lockstep::transforms {
namespace {

// A value of the text: a number, a name or a list of numbers.
struct Value {
  std::variant<double, std::string_view, std::vector<double>> is{};
  std::size_t offset = 0;

  const double* number() const { return std::get_if<double>(&is); }
  const std::string_view* name() const {
    return std::get_if<std::string_view>(&is);
  }
  // The numbers of a list of `count`; nothing for anything else.
  const double* list(std::size_t count) const {
    const auto* numbers = std::get_if<std::vector<double>>(&is);
    return numbers != nullptr && numbers->size() == count ? numbers->data()
                                                          : nullptr;
  }
};

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

  std::vector<double> numbers(char close) {
    std::vector<double> found;
    do {
      skip_spaces();
      if (!found.empty() && at_ < text_.size() && text_[at_] == close) break;
      found.push_back(number());
    } while (take(','));
    if (!take(close)) fail(at_, fmt::format("\",\" or \"{}\"", close));
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

// --- From a value to an argument -------------------------------------------
//
// Each convert() sets `member` and returns "", or returns what it expects.

constexpr std::array<std::pair<std::string_view, Interpolation>, 3>
    kInterpolations{{{"nearest", Interpolation::kNearest},
                     {"bilinear", Interpolation::kBilinear},
                     {"bicubic", Interpolation::kBicubic}}};
constexpr std::array<std::pair<std::string_view, PaddingMode>, 4> kPaddingModes{
    {{"constant", PaddingMode::kConstant},
     {"edge", PaddingMode::kEdge},
     {"reflect", PaddingMode::kReflect},
     {"symmetric", PaddingMode::kSymmetric}}};
constexpr std::array<std::pair<std::string_view, bool>, 4> kBools{
    {{"true", true}, {"false", false}, {"True", true}, {"False", false}}};

// The value of a name in a table.
template <class Table, class Member>
bool find(const Table& table, const Value& value, Member& member) {
  for (const auto& [name, meaning] : table)
    if (value.name() != nullptr && *value.name() == name) {
      member = meaning;
      return true;
    }
  return false;
}

bool to_whole(double number, std::int64_t& whole) {
  if (number != std::trunc(number) || std::abs(number) > 1e9) return false;
  whole = static_cast<std::int64_t>(number);
  return true;
}

std::string_view convert(const Value& value, Sides& member) {
  ImageSize both;
  if (const double* numbers = value.list(2);
      numbers != nullptr && to_whole(numbers[0], both.height) &&
      to_whole(numbers[1], both.width)) {
    member = both;
    return {};
  }
  std::int64_t side = 0;
  if (value.number() == nullptr || !to_whole(*value.number(), side))
    return "a whole number, or (height, width)";
  member = side;
  return {};
}

std::string_view convert(const Value& value, Interpolation& member) {
  return find(kInterpolations, value, member) ? ""
                                              : "nearest, bilinear or bicubic";
}

std::string_view convert(const Value& value, PaddingMode& member) {
  return find(kPaddingModes, value, member)
             ? ""
             : "constant, edge, reflect or symmetric";
}

std::string_view convert(const Value& value, bool& member) {
  return find(kBools, value, member) ? "" : "true or false";
}

std::string_view convert(const Value& value, std::int64_t& member) {
  const double* number = value.number();
  return number != nullptr && to_whole(*number, member) ? "" : "a whole number";
}

std::string_view convert(const Value& value, double& member) {
  if (value.number() == nullptr) return "a number";
  member = *value.number();
  return {};
}

// torchvision's padding: all sides; left and right, top and bottom; or each.
std::string_view convert(const Value& value,
                         std::array<std::int64_t, 4>& member) {
  constexpr std::string_view kExpected = "1, 2 or 4 whole numbers";
  const double* numbers = value.number();
  std::array<std::size_t, 4> from{0, 0, 0, 0};
  if (const double* two = value.list(2); two != nullptr) {
    numbers = two;
    from = {0, 1, 0, 1};
  } else if (const double* four = value.list(4); four != nullptr) {
    numbers = four;
    from = {0, 1, 2, 3};
  }
  if (numbers == nullptr) return kExpected;
  for (std::size_t i = 0; i < 4; ++i)
    if (!to_whole(numbers[from[i]], member[i])) return kExpected;
  return {};
}

std::string_view convert(const Value& value, Fill& member) {
  constexpr std::string_view kExpected = "1 or 3 whole numbers, 0 to 255";
  const double* numbers = value.list(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const double* number = numbers != nullptr ? numbers + i : value.number();
    std::int64_t whole = 0;
    if (number == nullptr || !to_whole(*number, whole) || whole < 0 ||
        whole > 255)
      return kExpected;
    member[i] = static_cast<std::uint8_t>(whole);
  }
  return {};
}

std::string_view convert(const Value& value, Range& member) {
  if (const double* both = value.list(2); both != nullptr)
    member = {both[0], both[1]};
  else if (value.number() != nullptr)
    member = {*value.number(), *value.number()};
  else
    return "(low, high)";
  return {};
}

std::string_view convert(const Value& value, NumberOrRange& member) {
  if (const double* both = value.list(2); both != nullptr)
    member = Range{both[0], both[1]};
  else if (value.number() != nullptr)
    member = *value.number();
  else
    return "a number, or (low, high)";
  return {};
}

std::string_view convert(const Value& value, std::optional<Center>& member) {
  const double* both = value.list(2);
  if (both == nullptr) return "(x, y)";
  member = Center{both[0], both[1]};
  return {};
}

std::string_view convert(const Value& value, std::array<double, 2>& member) {
  const double* both = value.list(2);
  if (both == nullptr) return "two numbers";
  member = {both[0], both[1]};
  return {};
}

std::string_view convert(const Value& value, Shear& member) {
  if (const double* four = value.list(4); four != nullptr) {
    member = {Range{four[0], four[1]}, Range{four[2], four[3]}};
    return {};
  }
  return convert(value, member.x).empty() ? "" : "1, 2 or 4 numbers";
}

std::string_view convert(const Value& value, std::vector<float>& member) {
  if (value.number() != nullptr)
    member = {static_cast<float>(*value.number())};
  else if (const auto* numbers = std::get_if<std::vector<double>>(&value.is))
    member.assign(numbers->begin(), numbers->end());
  else
    return "one number, or one for each channel";
  return {};
}

std::string_view convert(const Value& value,
                         std::variant<std::array<float, 3>, Noise>& member) {
  if (value.name() != nullptr && *value.name() == "random") {
    member = Noise{};
    return {};
  }
  std::array<float, 3> channels{};
  const double* numbers = value.list(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const double* number = numbers != nullptr ? numbers + i : value.number();
    if (number == nullptr) return "1 or 3 numbers, or random";
    channels[i] = static_cast<float>(*number);
  }
  member = channels;
  return {};
}

// --- From a call to a transform --------------------------------------------

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
std::string all_names(std::index_sequence<kIndex...>) {
  const std::array<std::string_view, sizeof...(kIndex)> names{
      name_of(Transform(std::in_place_index<kIndex>))...};
  return fmt::format("{}", fmt::join(names, ", "));
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
        for_each_field(one, [&](std::string_view name, auto& member) {
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
    reader.fail(
        call.offset,
        fmt::format(
            "one of {}, hflip, vflip",
            all_names(
                std::make_index_sequence<std::variant_size_v<Transform>>())));
  if (std::holds_alternative<Normalize>(*made) && call.arguments.size() == 1) {
    const std::string_view* value = call.arguments[0].value.name();
    if (value != nullptr && *value == "imagenet") return imagenet_normalize();
  }
  set_fields(reader, call, *made);
  return *made;
}

// --- From an argument to text ----------------------------------------------

template <class Table, class Member>
std::string name_in(const Table& table, const Member& member) {
  for (const auto& [name, meaning] : table)
    if (meaning == member) return std::string(name);
  return {};
}

template <class List>
std::string listed(const List& list) {
  return fmt::format("({}{})", fmt::join(list, ", "),
                     std::size(list) == 1 ? "," : "");
}

struct Printer {
  std::string operator()(const Sides& member) const {
    if (const auto* both = std::get_if<ImageSize>(&member))
      return fmt::format("({}, {})", both->height, both->width);
    return fmt::format("{}", std::get<std::int64_t>(member));
  }
  std::string operator()(Interpolation member) const {
    return name_in(kInterpolations, member);
  }
  std::string operator()(PaddingMode member) const {
    return name_in(kPaddingModes, member);
  }
  std::string operator()(bool member) const { return name_in(kBools, member); }
  std::string operator()(std::int64_t member) const {
    return fmt::format("{}", member);
  }
  std::string operator()(double member) const {
    return fmt::format("{}", member);
  }
  std::string operator()(const Range& member) const {
    return fmt::format("({}, {})", member.low, member.high);
  }
  std::string operator()(const NumberOrRange& member) const {
    return std::visit(*this, member);
  }
  std::string operator()(const std::optional<Center>& member) const {
    return member ? fmt::format("({}, {})", member->x, member->y) : "";
  }
  std::string operator()(const Shear& member) const {
    if (member.y == NumberOrRange(0.0)) return (*this)(member.x);
    const Range x = range_of(member.x, 0);
    const Range y = range_of(member.y, 0);
    return fmt::format("({}, {}, {}, {})", x.low, x.high, y.low, y.high);
  }
  std::string operator()(
      const std::variant<std::array<float, 3>, Noise>& member) const {
    const auto* value = std::get_if<std::array<float, 3>>(&member);
    return value == nullptr ? "random" : listed(*value);
  }
  template <class List>
  std::string operator()(const List& member) const {
    return listed(member);
  }
};

template <class T>
std::vector<std::pair<std::string_view, std::string>> fields_of(
    const T& transform) {
  std::vector<std::pair<std::string_view, std::string>> fields;
  for_each_field(transform, [&](std::string_view name, const auto& member) {
    fields.emplace_back(name, Printer()(member));
  });
  return fields;
}

}  // namespace

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
