#include "src/data/transform/text_value.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "src/data/transform/draw.h"

namespace lockstep::transforms {
namespace {

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

}  // namespace

std::string_view convert(const Value& value, Sides& member) {
  ImageSize both;
  if (const double* numbers = value.list(2);
      numbers != nullptr && to_whole(numbers[0], both.height) &&
      to_whole(numbers[1], both.width)) {
    member = both;
    return {};
  }
  std::int64_t side = 0;
  if (value.one() == nullptr || !to_whole(*value.one(), side))
    return "a whole number, or (height, width)";
  member = side;
  return {};
}

std::string_view convert(const Value& value, WidthFirst<Sides> member) {
  if (!convert(value, member.sides).empty())
    return "a whole number, or (width, height)";
  if (auto* both = std::get_if<ImageSize>(&member.sides))
    std::swap(both->height, both->width);
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
  const double* numbers = value.one();
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
    const double* number = numbers != nullptr ? numbers + i : value.one();
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
    const double* number = numbers != nullptr ? numbers + i : value.one();
    if (number == nullptr) return "1 or 3 numbers, or random";
    channels[i] = static_cast<float>(*number);
  }
  member = channels;
  return {};
}

std::string printed(const Sides& member) {
  if (const auto* both = std::get_if<ImageSize>(&member))
    return fmt::format("({}, {})", both->height, both->width);
  return fmt::format("{}", std::get<std::int64_t>(member));
}

std::string printed(WidthFirst<const Sides> member) {
  if (const auto* both = std::get_if<ImageSize>(&member.sides))
    return fmt::format("({}, {})", both->width, both->height);
  return printed(member.sides);
}

std::string printed(Interpolation member) {
  return name_in(kInterpolations, member);
}

std::string printed(PaddingMode member) {
  return name_in(kPaddingModes, member);
}

std::string printed(bool member) { return name_in(kBools, member); }
std::string printed(std::int64_t member) { return fmt::format("{}", member); }

std::string printed(double member) { return fmt::format("{}", member); }

std::string printed(const Range& member) {
  return fmt::format("({}, {})", member.low, member.high);
}

std::string printed(const NumberOrRange& member) {
  return std::visit([](const auto& one) { return printed(one); }, member);
}

std::string printed(const std::optional<Center>& member) {
  return member ? fmt::format("({}, {})", member->x, member->y) : "";
}

std::string printed(const Shear& member) {
  if (member.y == NumberOrRange(0.0)) return printed(member.x);
  const Range x = range_of(member.x, 0);
  const Range y = range_of(member.y, 0);
  return fmt::format("({}, {}, {}, {})", x.low, x.high, y.low, y.high);
}

std::string printed(const std::variant<std::array<float, 3>, Noise>& member) {
  const auto* value = std::get_if<std::array<float, 3>>(&member);
  return value == nullptr ? "random" : listed(*value);
}

std::string printed(const std::array<std::int64_t, 4>& member) {
  return listed(member);
}

std::string printed(const Fill& member) { return listed(member); }

std::string printed(const std::array<double, 2>& member) {
  return listed(member);
}

std::string printed(const std::vector<float>& member) { return listed(member); }

}  // namespace lockstep::transforms
