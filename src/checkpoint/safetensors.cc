#include "src/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

using HeaderJson = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "elements are stored as they lie in memory: little-endian");

constexpr std::size_t kLengthBytes = 8;
// The reference implementation's limit.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeRow {
  std::string_view name;
  std::size_t bytes = 0;
};

// In the order of SafetensorsType.
constexpr std::array<TypeRow, kSafetensorsTypes> kScalarTypes{{{"F64", 8},
                                                               {"F32", 4},
                                                               {"F16", 2},
                                                               {"BF16", 2},
                                                               {"F8_E4M3", 1},
                                                               {"F8_E5M2", 1},
                                                               {"F8_E8M0", 1},
                                                               {"C64", 8},
                                                               {"I64", 8},
                                                               {"I32", 4},
                                                               {"I16", 2},
                                                               {"I8", 1},
                                                               {"U64", 8},
                                                               {"U32", 4},
                                                               {"U16", 2},
                                                               {"U8", 1},
                                                               {"BOOL", 1}}};

const TypeRow& row_of(SafetensorsType type) {
  return kScalarTypes[static_cast<std::size_t>(type)];
}

std::string in_quotes(std::string_view text) {
  return "\"" + std::string(text) + "\"";
}

// The input, for messages.
struct Source {
  const std::string& file;

  [[noreturn]] void refuse(const std::string& problem) const {
    throw InvalidArgument(
        in_quotes(file) + " is not a readable safetensors file: " + problem +
        "\n  likely:  it is damaged, was cut short, or is another kind of "
        "file\n  next:    name another file, or write this one again");
  }
  [[noreturn]] void refuse(const std::string& tensor,
                           const std::string& problem) const {
    refuse("tensor " + in_quotes(tensor) + ": " + problem);
  }
};

// Refuses input that the library would silently accept: a repeated key in one
// object (the later wins there), and nesting deeper than the format's.
class HeaderGuard {
 public:
  explicit HeaderGuard(const Source& source) : source_(source) {}

  bool operator()(int depth, HeaderJson::parse_event_t event,
                  const HeaderJson& parsed) {
    constexpr int kDeepest = 4;
    if (depth > kDeepest) source_.refuse("its header is nested too deeply");
    const auto level = static_cast<std::size_t>(depth);
    if (event == HeaderJson::parse_event_t::object_start) keys_[level].clear();
    if (event == HeaderJson::parse_event_t::key &&
        !keys_[level - 1].insert(parsed.get<std::string>()).second)
      source_.refuse("its header has the key " + parsed.dump() + " twice");
    return true;
  }

 private:
  const Source& source_;
  std::array<std::set<std::string>, 8> keys_;
};

// `bytes` are the first ones of a file of `size` bytes.
std::uint64_t header_length(std::span<const std::byte> bytes,
                            std::uint64_t size, const Source& source) {
  if (bytes.size() < kLengthBytes)
    source.refuse("expected at least " + std::to_string(kLengthBytes) +
                  " bytes, found " + std::to_string(bytes.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::uint64_t room = size - kLengthBytes;
  if (length > std::min(room, kMaxHeaderBytes))
    source.refuse("its first 8 bytes announce a header of " +
                  std::to_string(length) + " bytes; " + std::to_string(room) +
                  " bytes follow, and at most " +
                  std::to_string(kMaxHeaderBytes) + " are allowed");
  return length;
}

HeaderJson parse_header(std::string_view text, const Source& source) {
  if (text.empty() || text.front() != '{')
    source.refuse("expected a header that begins with '{' at byte 8");
  // The parser would take it for the end and ignore the rest.
  if (text.find('\0') != std::string_view::npos)
    source.refuse("its header is not JSON: it contains a zero byte");
  HeaderJson header;
  try {
    header = HeaderJson::parse(text, HeaderGuard(source));
  } catch (const HeaderJson::exception& error) {
    source.refuse(std::string("its header is not JSON: ") + error.what());
  }
  return header;
}

SafetensorsMetadata read_metadata(const HeaderJson& object,
                                  const Source& source) {
  if (!object.is_object()) source.refuse("__metadata__ is not an object");
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string())
      source.refuse("__metadata__ " + in_quotes(key) + " is not a string");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// An array of non-negative integers, or empty if it is anything else.
std::optional<std::vector<std::int64_t>> read_numbers(const HeaderJson& object,
                                                      const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const HeaderJson& value : *found) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() >
            static_cast<std::uint64_t>(
                std::numeric_limits<std::int64_t>::max()))
      return std::nullopt;
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

// Bytes of a tensor.
std::optional<std::uint64_t> bytes_of(SafetensorsType type,
                                      std::span<const std::int64_t> shape) {
  return product_of(shape, static_cast<std::int64_t>(size_of(type)));
}

std::string type_names() {
  std::string names;
  for (const TypeRow& row : kScalarTypes)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

SafetensorsType read_type(const std::string& tensor, const HeaderJson& entry,
                          const Source& source) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string())
    source.refuse(tensor, "it has no dtype");
  const auto name = found->get<std::string>();
  const auto known = std::ranges::find(kScalarTypes, name, &TypeRow::name);
  if (known == kScalarTypes.end())
    source.refuse(tensor, "its dtype " + in_quotes(name) + " is not one of " +
                              type_names());
  return static_cast<SafetensorsType>(known - kScalarTypes.begin());
}

// `data` is the number of bytes of data; offsets are from their beginning.
TensorPlace read_place(const std::string& name, const HeaderJson& entry,
                       std::uint64_t data, const Source& source) {
  if (!entry.is_object()) source.refuse(name, "its entry is not an object");
  TensorPlace tensor{name, read_type(name, entry, source), {}, 0, 0};
  const auto shape = read_numbers(entry, "shape");
  if (!shape) source.refuse(name, "its shape is not a list of integers");
  tensor.shape = *shape;
  const auto range = read_numbers(entry, "data_offsets");
  if (!range || range->size() != 2 || (*range)[0] > (*range)[1])
    source.refuse(name, "its data_offsets are not [begin, end]");
  tensor.begin = static_cast<std::uint64_t>((*range)[0]);
  tensor.end = static_cast<std::uint64_t>((*range)[1]);
  if (tensor.end > data)
    source.refuse(name, "its data ends at byte " + std::to_string(tensor.end) +
                            ", but only " + std::to_string(data) +
                            " bytes of data exist");
  const auto expected = bytes_of(tensor.type, tensor.shape);
  if (expected != tensor.end - tensor.begin)
    source.refuse(
        name, "its shape takes " +
                  (expected ? std::to_string(*expected) : "uncountably many") +
                  " bytes, its data_offsets span " +
                  std::to_string(tensor.end - tensor.begin));
  return tensor;
}

// Every byte of data belongs to exactly one tensor. `tensors` are in the order
// of their data.
void check_cover(const std::vector<TensorPlace>& tensors, std::uint64_t data,
                 const Source& source) {
  std::uint64_t expected = 0;
  for (const TensorPlace& tensor : tensors) {
    if (tensor.begin != expected)
      source.refuse(tensor.name,
                    "its data begins at byte " + std::to_string(tensor.begin) +
                        ", expected at " + std::to_string(expected) +
                        ", where the data before it ends");
    expected = tensor.end;
  }
  if (expected != data)
    source.refuse(std::to_string(data - expected) +
                  " bytes at its end belong to no tensor");
}

// The offsets are still from the beginning of the data.
SafetensorsHeader parse_places(std::span<const std::byte> text,
                               std::uint64_t data, const Source& source) {
  const HeaderJson json = parse_header(
      {reinterpret_cast<const char*>(text.data()), text.size()}, source);
  SafetensorsHeader header;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadataKey)
      header.metadata = read_metadata(entry, source);
    else
      header.tensors.push_back(read_place(name, entry, data, source));
  }
  std::ranges::sort(header.tensors, {}, [](const TensorPlace& tensor) {
    return std::pair(tensor.begin, tensor.end);
  });
  check_cover(header.tensors, data, source);
  return header;
}

bool has_wrong_bool(SafetensorsType type, std::span<const std::byte> bytes) {
  return type == SafetensorsType::kBool &&
         std::ranges::any_of(bytes,
                             [](std::byte b) { return b > std::byte{1}; });
}

// The bytes of a tensor to write.
std::size_t bytes_to_write(const TensorStream& tensor) {
  const auto bytes = bytes_of(tensor.type, tensor.shape);
  if (!bytes)
    throw InvalidArgument("tensor " + in_quotes(tensor.name) +
                          " to save has a shape that is too large");
  return *bytes;
}

[[noreturn]] void refuse_bytes(const TensorStream& tensor, std::size_t bytes) {
  throw InvalidArgument("tensor " + in_quotes(tensor.name) + " has " +
                        std::to_string(bytes) +
                        " bytes, which do not fit its shape");
}

// The bytes that our reader and the reference implementation take.
void check_length(const std::string& header) {
  if (header.size() <= kMaxHeaderBytes) return;
  throw InvalidArgument("the names and texts to save take " +
                        std::to_string(header.size()) +
                        " bytes in a safetensors file, which allows " +
                        std::to_string(kMaxHeaderBytes) +
                        "\n  next:    save fewer tensors, or shorter texts");
}

std::string header_text(std::span<const TensorStream> tensors,
                        const SafetensorsMetadata& metadata) {
  check_texts(metadata);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::size_t offset = 0;
  std::set<std::string_view> names{kMetadataKey};
  for (const TensorStream& tensor : tensors) {
    check_name(tensor.name);
    const std::size_t end = offset + bytes_to_write(tensor);
    if (!names.insert(tensor.name).second)
      throw InvalidArgument("two tensors to save have the name " +
                            in_quotes(tensor.name) +
                            "\n  next:    rename one of them");
    header[tensor.name] = {{"dtype", name_of(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  // Pads with spaces, so that the data begins at a multiple of 8.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check_length(text);
  return text;
}

std::uint64_t size_of_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error)
    throw SystemError("cannot read \"" + path.string() + "\"", error.value());
  return size;
}

}  // namespace

std::optional<std::uint64_t> product_of(std::span<const std::int64_t> shape,
                                        std::int64_t unit) {
  for (const std::int64_t extent : shape)
    if (extent < 0 ||
        __builtin_mul_overflow(unit, std::max<std::int64_t>(extent, 1), &unit))
      return std::nullopt;
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  return static_cast<std::uint64_t>(unit);
}

void check_name(const std::string& name) {
  if (is_utf8(name)) return;
  throw InvalidArgument("tensor " + in_quotes(printable(name)) +
                        " cannot be saved: its name is not UTF-8"
                        "\n  next:    rename it");
}

void check_texts(const SafetensorsMetadata& metadata) {
  for (const auto& [key, text] : metadata)
    if (!is_utf8(key) || !is_utf8(text))
      throw InvalidArgument(
          "the text " + in_quotes(printable(key)) +
          " to save with tensors is not UTF-8: " + in_quotes(printable(text)) +
          "\n  next:    encode it in UTF-8");
}

std::string_view name_of(SafetensorsType type) { return row_of(type).name; }

std::size_t size_of(SafetensorsType type) { return row_of(type).bytes; }

SafetensorsView parse_safetensors(std::span<const std::byte> bytes,
                                  const std::string& file) {
  const Source source{file};
  const std::size_t length = header_length(bytes, bytes.size(), source);
  const auto data = bytes.subspan(kLengthBytes + length);
  SafetensorsHeader header =
      parse_places(bytes.subspan(kLengthBytes, length), data.size(), source);
  SafetensorsView view{.metadata = std::move(header.metadata), .tensors = {}};
  for (TensorPlace& place : header.tensors) {
    const auto elements = data.subspan(place.begin, place.end - place.begin);
    view.tensors.push_back(
        {std::move(place.name), place.type, std::move(place.shape), elements});
    if (has_wrong_bool(place.type, elements))
      source.refuse(view.tensors.back().name, "a BOOL is neither 0 nor 1");
  }
  return view;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Source source{name};
  const std::uint64_t size = size_of_file(path);
  std::ifstream file(path, std::ios::binary);
  const auto read = [&](std::uint64_t count) {
    std::vector<std::byte> bytes(count);
    file.read(reinterpret_cast<char*>(bytes.data()),
              static_cast<std::streamsize>(count));
    if (!file)
      throw SystemError("cannot read the header of \"" + name + "\"", errno);
    return bytes;
  };
  const auto start = read(std::min<std::uint64_t>(size, kLengthBytes));
  const std::uint64_t length = header_length(start, size, source);
  const std::uint64_t data = kLengthBytes + length;
  SafetensorsHeader header = parse_places(read(length), size - data, source);
  for (TensorPlace& place : header.tensors) {
    place.begin += data;
    place.end += data;
  }
  return header;
}

std::vector<std::byte> read_whole_file(const std::filesystem::path& path) {
  const std::uint64_t size = size_of_file(path);
  std::vector<std::byte> bytes(size);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()),
            static_cast<std::streamsize>(size));
  if (!file)
    throw SystemError("cannot read the " + std::to_string(size) +
                          " bytes of \"" + path.string() + "\"",
                      errno);
  return bytes;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : bytes_(read_whole_file(path)),
      view_(parse_safetensors(bytes_, path.string())) {}

void write_safetensors(const ByteSink& sink, std::vector<TensorStream> tensors,
                       const SafetensorsMetadata& metadata) {
  std::ranges::sort(tensors, [](const TensorStream& a, const TensorStream& b) {
    if (size_of(a.type) != size_of(b.type))
      return size_of(a.type) > size_of(b.type);
    return a.name < b.name;
  });
  const std::string header = header_text(tensors, metadata);
  const std::uint64_t length = header.size();
  sink(std::as_bytes(std::span(&length, 1)));
  sink(std::as_bytes(std::span(header)));
  for (const TensorStream& tensor : tensors) {
    std::size_t written = 0;
    tensor.write([&](std::span<const std::byte> bytes) {
      if (has_wrong_bool(tensor.type, bytes))
        throw InvalidArgument("tensor " + in_quotes(tensor.name) +
                              " cannot be saved: a bool in its memory is "
                              "neither 0 nor 1");
      written += bytes.size();
      sink(bytes);
    });
    if (written != bytes_to_write(tensor)) refuse_bytes(tensor, written);
  }
}

void write_safetensors(const std::filesystem::path& path,
                       std::span<const TensorBytes> tensors,
                       const SafetensorsMetadata& metadata) {
  std::vector<TensorStream> streams;
  for (const TensorBytes& tensor : tensors)
    streams.push_back({tensor.name, tensor.type, tensor.shape,
                       [&](const ByteSink& sink) { sink(tensor.bytes); }});
  replace_file(path, [&](const ByteSink& sink) {
    write_safetensors(sink, std::move(streams), metadata);
  });
}

}  // namespace lockstep
