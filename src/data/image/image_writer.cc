// libjpeg and libpng write to memory; the caller writes the file, so that one
// place reports what a disk refuses.
#include "src/data/image/image_writer.h"

#include <cstdio>
// libjpeg's headers need <cstdio> first.
#include <fmt/format.h>
#include <jerror.h>
#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/image/library_call.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLongestJpegSide = JPEG_MAX_DIMENSION;
// libpng's default limit.
constexpr std::int64_t kLongestPngSide = 1'000'000;

void check_writable(const Image& image, std::string_view format,
                    std::int64_t longest_side) {
  // clang 14 captures no structured bindings.
  const std::int64_t height = image.size.height;
  const std::int64_t width = image.size.width;
  const auto refuse = [&](const char* why, const char* next) {
    throw InvalidArgument(fmt::format(
        "cannot write an image of {} x {} pixels (width x height) and {} "
        "channels as {}: {}\n"
        "  next:    {}",
        width, height, image.channels, format, why, next));
  };
  if (height < 1 || width < 1)
    refuse("it has no pixels", "give it at least one");
  if (height > longest_side || width > longest_side)
    refuse("a side is too long for the format", "make the image smaller");
  if (image.channels != 1 && image.channels != 3)
    refuse("it is neither grey nor RGB", "give it 1 channel or 3");
  if (std::ssize(image.pixels) != height * width * image.channels)
    refuse("the number of its pixels is another one",
           "give it height x width x channels bytes");
}

// What a library has written. An exception must not pass through the library's
// frames, and a jump must not leave a handler: so an error is kept.
class WrittenFile {
 public:
  void append(std::span<const std::byte> bytes) noexcept {
    try {
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  bool has_failed() const { return failure_ != nullptr; }

  // The bytes; throws where one could not be kept.
  std::vector<std::byte> take() {
    if (failure_) std::rethrow_exception(failure_);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_{};
  std::exception_ptr failure_{};
};

// The calls of a library for one image. A step that fails jumps out of the
// library; the destructor then frees what the library holds.
class JpegOutput {
 public:
  JpegOutput() {
    object_.err = jpeg_std_error(&errors_);
    object_.client_data = this;
    errors_.error_exit = stop;
    target_.init_destination = begin_buffer;
    target_.empty_output_buffer = flush_whole_buffer;
    target_.term_destination = flush_rest;
  }
  ~JpegOutput() { jpeg_destroy_compress(&object_); }
  JpegOutput(const JpegOutput&) = delete;
  JpegOutput& operator=(const JpegOutput&) = delete;

  std::vector<std::byte> write(const Image& image, int quality) {
    const auto row_bytes =
        static_cast<std::size_t>(image.size.width * image.channels);
    const bool written = call_.succeeds([&] {
      jpeg_create_compress(&object_);
      object_.dest = &target_;
      object_.image_height = static_cast<JDIMENSION>(image.size.height);
      object_.image_width = static_cast<JDIMENSION>(image.size.width);
      object_.input_components = static_cast<int>(image.channels);
      object_.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
      jpeg_set_defaults(&object_);
      jpeg_set_quality(&object_, quality, TRUE);
      jpeg_start_compress(&object_, TRUE);
      while (object_.next_scanline < object_.image_height) {
        // libjpeg does not write to it.
        auto* row = const_cast<JSAMPLE*>(image.pixels.data() +
                                         object_.next_scanline * row_bytes);
        jpeg_write_scanlines(&object_, &row, 1);
      }
      jpeg_finish_compress(&object_);
    });
    if (written) return file_.take();
    if (errors_.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
    throw InternalError(fmt::format("libjpeg: {}", text_.data()));
  }

 private:
  static JpegOutput& of(j_common_ptr object) {
    return *static_cast<JpegOutput*>(object->client_data);
  }
  static JpegOutput& of(j_compress_ptr object) {
    return of(reinterpret_cast<j_common_ptr>(object));
  }

  [[noreturn]] static void stop(j_common_ptr object) {
    object->err->format_message(object, of(object).text_.data());
    of(object).call_.fail();
  }

  static void begin_buffer(j_compress_ptr object) {
    JpegOutput& output = of(object);
    output.target_.next_output_byte = output.buffer_.data();
    output.target_.free_in_buffer = output.buffer_.size();
  }

  static boolean flush_whole_buffer(j_compress_ptr object) {
    JpegOutput& output = of(object);
    output.file_.append(std::as_bytes(std::span(output.buffer_)));
    begin_buffer(object);
    return TRUE;
  }

  static void flush_rest(j_compress_ptr object) {
    JpegOutput& output = of(object);
    output.file_.append(
        std::as_bytes(std::span(output.buffer_))
            .first(output.buffer_.size() - output.target_.free_in_buffer));
  }

  jpeg_error_mgr errors_{};
  jpeg_destination_mgr target_{};
  jpeg_compress_struct object_{};
  LibraryCall call_{};
  std::array<char, JMSG_LENGTH_MAX> text_{};
  std::array<JOCTET, 16384> buffer_{};
  WrittenFile file_{};
};

class PngOutput {
 public:
  PngOutput() {
    const bool made = call_.succeeds([this] {
      png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, this, stop,
                                     ignore_warning);
      if (png_ != nullptr) info_ = png_create_info_struct(png_);
    });
    if (made && info_ != nullptr) return;
    png_destroy_write_struct(&png_, &info_);
    throw std::bad_alloc();
  }
  ~PngOutput() { png_destroy_write_struct(&png_, &info_); }
  PngOutput(const PngOutput&) = delete;
  PngOutput& operator=(const PngOutput&) = delete;

  std::vector<std::byte> write(const Image& image) {
    const auto row_bytes =
        static_cast<std::size_t>(image.size.width * image.channels);
    const bool written = call_.succeeds([&] {
      png_set_write_fn(png_, this, append, nullptr);
      png_set_IHDR(
          png_, info_, static_cast<png_uint_32>(image.size.width),
          static_cast<png_uint_32>(image.size.height), 8,
          image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB,
          PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
          PNG_FILTER_TYPE_DEFAULT);
      png_write_info(png_, info_);
      for (std::int64_t row = 0; row < image.size.height; ++row)
        png_write_row(png_, image.pixels.data() +
                                static_cast<std::size_t>(row) * row_bytes);
      png_write_end(png_, info_);
    });
    if (!written && !file_.has_failed())
      throw InternalError(fmt::format("libpng: {}", text_.data()));
    return file_.take();
  }

 private:
  [[noreturn]] static void stop(png_structp png, png_const_charp text) {
    auto* const output = static_cast<PngOutput*>(png_get_error_ptr(png));
    std::strncpy(output->text_.data(), text, output->text_.size() - 1);
    output->call_.fail();
  }

  static void ignore_warning(png_structp /*png*/, png_const_charp /*text*/) {}

  static void append(png_structp png, png_bytep bytes, std::size_t count) {
    auto* const output = static_cast<PngOutput*>(png_get_io_ptr(png));
    output->file_.append(std::as_bytes(std::span(bytes, count)));
    if (output->file_.has_failed()) png_error(png, "out of memory");
  }

  LibraryCall call_{};
  std::array<char, 200> text_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  WrittenFile file_{};
};

}  // namespace

std::vector<std::byte> write_jpeg(const Image& image, int quality) {
  check_writable(image, "JPEG", kLongestJpegSide);
  if (quality < 1 || quality > 100)
    throw InvalidArgument(
        fmt::format("cannot write a JPEG file of quality {}\n"
                    "  next:    choose a quality from 1 to 100",
                    quality));
  return JpegOutput().write(image, quality);
}

std::vector<std::byte> write_png(const Image& image) {
  check_writable(image, "PNG", kLongestPngSide);
  return PngOutput().write(image);
}

}  // namespace lockstep
