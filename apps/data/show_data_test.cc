#include "apps/data/show_data.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "apps/data/contact_sheet.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/data/data_file.h"
#include "src/data/testing/idx_samples.h"
#include "src/data/testing/test_images.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ShowDataTest : public testing::Test {
 protected:
  void write(const fs::path& file, const auto& bytes) const {
    fs::create_directories((root() / file).parent_path());
    replace_text_file(
        root() / file,
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  // A JPEG or PNG file, as its name says.
  void add(const std::string& file, const ImageSize& size = {8, 6}) const {
    const Image image = test_image(size);
    write(file,
          file.ends_with(".png") ? encode_png(image) : encode_jpeg(image));
  }
  // In ImageNet's layout.
  void add_small_dataset() const {
    for (const char* file : {"train/cat/a.jpg", "train/cat/b.jpg",
                             "train/dog/a.jpg", "val/cat/a.jpg"})
      add(file);
    add("train/dog/large.png", {20, 30});
    add("val/dog/small.png", {4, 5});
  }

  fs::path root() const { return directory_ / "data"; }
  ShowDataOptions options(ExamineDepth depth = ExamineDepth::kHeaders) const {
    return {.data = root().string(), .depth = depth, .threads = 2};
  }

  TestDirectory directory_{};
};

std::string usage_error(ShowDataOptions options) {
  const std::string text =
      error_text([&] { complete_show_data_options(options, 2); });
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  return text;
}

TEST_F(ShowDataTest, TellsTheClassesKindsAndSizesOfEachSplit) {
  add_small_dataset();
  const ShownData shown = show_data(options());
  EXPECT_TRUE(shown.intact);
  EXPECT_EQ(shown.text,
            root().string() +
                "\n"
                "  split  images  classes           kind  smallest  median  "
                "largest\n"
                "  train       4        2  3 JPEG, 1 PNG     6 x 8   6 x 8  "
                "30 x 20\n"
                "  val         2        2  1 JPEG, 1 PNG     5 x 4   6 x 8    "
                "6 x 8\n"
                "  class  train  val\n"
                "  cat        2    1\n"
                "  dog        2    1\n");
}

TEST_F(ShowDataTest, TakesAFolderOfClassesAlso) {
  add("cat/deep/a.jpg");
  add("train/a.jpg");  // a class
  EXPECT_THAT(show_data(options()).text,
              AllOf(HasSubstr("  all         2        2  JPEG"),
                    HasSubstr("  cat      1\n  train    1\n")));
}

TEST_F(ShowDataTest, TakesAFolderOfImagesAlone) {
  add("a.jpg");
  add("b.jpg");
  write("cut.jpg", start_of(encode_jpeg(test_image({40, 40})), 500));
  ShowDataOptions flat = options(ExamineDepth::kPixels);
  flat.contact_sheet = (directory_ / "sheet.png").string();
  const ShownData shown = show_data(flat);
  EXPECT_FALSE(shown.intact);
  EXPECT_EQ(shown.text,
            root().string() +
                "\n"
                "  split  images  classes  kind  smallest  median  largest\n"
                "  all         3        -  JPEG     6 x 8   6 x 8    6 x 8\n"
                "broken images: 1\n"
                "  cut.jpg: it is truncated\n"
                "contact sheet: " +
                flat.contact_sheet + ", rows from above: all\n");
}

TEST_F(ShowDataTest, ListsTheLargestAndSmallestOfManyClasses) {
  for (int i = 0; i < 30; ++i) {
    const std::string name = "class" + std::to_string(10 + i);
    for (int image = 0; image < (i == 20 ? 3 : i == 7 ? 1 : 2); ++image)
      add(name + "/" + std::to_string(image) + ".png", {1, 1});
  }
  EXPECT_THAT(show_data(options()).text, HasSubstr("  class30        3\n"
                                                   "  class10        2\n"
                                                   "  class11        2\n"
                                                   "  class12        2\n"
                                                   "  class13        2\n"
                                                   "  ... 20 more\n"
                                                   "  class36        2\n"
                                                   "  class37        2\n"
                                                   "  class38        2\n"
                                                   "  class39        2\n"
                                                   "  class17        1\n"));
}

TEST_F(ShowDataTest, SaysWhichClassesASplitLacks) {
  add_small_dataset();
  add("val/owl/a.png");
  EXPECT_THAT(show_data(options()).text,
              AllOf(HasSubstr("  owl        -    1\n"),
                    HasSubstr("train lacks classes that another split has: "
                              "owl\n  next: ")));
}

TEST_F(ShowDataTest, FindsBrokenImages) {
  add_small_dataset();
  const ImageFile whole = encode_jpeg(test_image({40, 40}));
  write("train/cat/cut.jpg", start_of(whole, whole.size() - 20));
  write("val/dog/text.jpg", std::string_view("no image"));
  const ShownData headers = show_data(options());
  EXPECT_FALSE(headers.intact);
  EXPECT_THAT(headers.text, HasSubstr("broken images: 1\n"
                                      "  val/dog/text.jpg: it is neither a "
                                      "JPEG nor a PNG file\n"));
  const ShownData pixels = show_data(options(ExamineDepth::kPixels));
  EXPECT_FALSE(pixels.intact);
  EXPECT_THAT(pixels.text, HasSubstr("broken images: 2\n"
                                     "  train/cat/cut.jpg: it is truncated\n"
                                     "  val/dog/text.jpg: it is neither"));
  fs::remove(root() / "train/cat/cut.jpg");
  fs::remove(root() / "val/dog/text.jpg");
  EXPECT_THAT(show_data(options(ExamineDepth::kPixels)).text,
              HasSubstr("every image can be decoded\n"));
}

TEST_F(ShowDataTest, LooksAtTheFolderTestAlso) {
  for (const char* file : {"train/cat/a.jpg", "val/cat/a.jpg"}) add(file);
  write("test/cat/text.jpg", std::string_view("no image"));
  const ShownData shown = show_data(options());
  EXPECT_FALSE(shown.intact);
  EXPECT_THAT(shown.text, HasSubstr("\n  test/cat/text.jpg: "));
}

TEST_F(ShowDataTest, ListsTheSplitsThatThereAreWithoutTrainAlso) {
  for (const char* file : {"val/cat/a.jpg", "test/cat/a.jpg"}) add(file);
  EXPECT_THAT(show_data(options()).text,
              AllOf(HasSubstr("\n  val  "), HasSubstr("\n  test "),
                    HasSubstr("  class  val  test\n  cat      1     1\n")));
}

TEST_F(ShowDataTest, ReadsMoreOfAFileWhereItsHeadersAreLong) {
  add("cat/a.png", {300, 301});
  ASSERT_GT(fs::file_size(root() / "cat/a.png"), 1u << 16);
  EXPECT_THAT(show_data(options()).text, HasSubstr("301 x 300"));
  const auto file = read_data_file(root() / "cat/a.png");
  write("cat/cut.png", start_of(file, file.size() - 20));  // in the pixels
  EXPECT_THAT(show_data(options()).text,
              HasSubstr("cat/cut.png: it is truncated"));
}

TEST_F(ShowDataTest, TellsProgramsTheSame) {
  add_small_dataset();
  write("train/dog/empty.png", std::string_view());
  ShowDataOptions to_file = options(ExamineDepth::kPixels);
  to_file.json = (directory_ / "report.json").string();
  EXPECT_THAT(show_data(to_file).text, HasSubstr("broken images"));
  const auto object = nlohmann::json::parse(contents(to_file.json));
  EXPECT_EQ(object["data"], root().string());
  EXPECT_EQ(object["checked"], true);
  const auto train = object["splits"][0];
  EXPECT_EQ(train["name"], "train");
  EXPECT_EQ(train["images"], 5);
  EXPECT_EQ(train["classes"][1],
            (nlohmann::json{{"name", "dog"}, {"images", 3}}));
  EXPECT_EQ(train["kinds"], (nlohmann::json{{"JPEG", 3}, {"PNG", 1}}));
  EXPECT_EQ(train["largest"], (nlohmann::json{{"width", 30}, {"height", 20}}));
  EXPECT_EQ(train["broken"][0]["path"], "train/dog/empty.png");
  EXPECT_EQ(object["splits"][1]["broken"].size(), 0u);

  ShowDataOptions to_output = to_file;
  to_output.json = "-";
  EXPECT_EQ(show_data(to_output).text, contents(to_file.json));
}

TEST_F(ShowDataTest, KeepsTheTerminalFromNamesAndReasons) {
  add("cat\x1b[2J/a.png");
  EXPECT_THAT(show_data(options()).text, HasSubstr("cat?[2J"));
}

TEST_F(ShowDataTest, ShowsAKnownDataset) {
  for (const auto& [part, count] :
       {std::pair<std::string, std::uint32_t>("train", 4), {"t10k", 2}}) {
    write(part + "-images-idx3-ubyte",
          idx_file({count, 2, 3}, FileBytes(count * 6, 51)));
    FileBytes labels(count, 7);
    labels.front() = 1;
    write(part + "-labels-idx1-ubyte", idx_file({count}, labels));
  }
  ShowDataOptions known{.data = "mnist", .data_dir = root().string()};
  known.contact_sheet = (directory_ / "sheet.png").string();
  const std::string text = show_data(known).text;
  EXPECT_THAT(text, AllOf(HasSubstr("MNIST\n"), HasSubstr("3 x 2"),
                          HasSubstr("  1          1     1\n"),
                          HasSubstr("  7          3     1\n"),
                          HasSubstr("  lockstep train normalizes with\n"
                                    "    mean       0.1307\n"),
                          HasSubstr("rows from above: 0, 1, 2, 3")));
  EXPECT_EQ(decode_image(read_data_file(known.contact_sheet), "sheet").size,
            (ImageSize{1004, 804}));
}

TEST_F(ShowDataTest, DrawsARowOfThumbnailsPerClass) {
  add_small_dataset();
  write("train/cat/broken.jpg", std::string_view());
  ShowDataOptions drawn = options();
  drawn.contact_sheet = (directory_ / "sheet.png").string();
  EXPECT_THAT(show_data(drawn).text,
              HasSubstr("sheet.png, rows from above: cat, dog\n"));
  EXPECT_EQ(decode_image(read_data_file(drawn.contact_sheet), "sheet").size,
            (ImageSize{2 * 100 + 4, 8 * 100 + 4}));
  drawn.augment = "random_crop(4) | hflip";
  show_data(drawn);
  const auto sheet = read_data_file(drawn.contact_sheet);
  EXPECT_EQ(decode_image(sheet, "sheet").size,
            (ImageSize{2 * 100 + 4, 16 * 100 + 4}));
  show_data(drawn);
  EXPECT_EQ(read_data_file(drawn.contact_sheet), sheet);
  drawn.seed = 1;
  show_data(drawn);
  EXPECT_NE(read_data_file(drawn.contact_sheet), sheet);
}

TEST(ContactSheet, PutsTheTransformedImageBesideEachSample) {
  const auto fill = [](std::uint8_t value) {
    return Image{.size = {1, 2}, .pixels = std::vector<std::uint8_t>(6, value)};
  };
  const ShownSamples samples{.class_names = {"one", "two"},
                             .by_class = {{0}, {1}},
                             .read = [&](std::int64_t index) {
                               if (index == 1) throw InvalidArgument("broken");
                               return fill(200);
                             }};
  const Image sheet =
      contact_sheet(samples, {.augment = Compose("color_jitter((0.5, 0.5))")});
  EXPECT_EQ(sheet.size, (ImageSize{204, 1604}));
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return sheet.pixels[static_cast<std::size_t>((row * 1604 + column) * 3)];
  };
  // A thumbnail is 96 x 48 pixels in the middle of its cell.
  EXPECT_EQ(at(4 + 23, 4), 236);
  EXPECT_EQ(at(4 + 24, 4), 200);
  EXPECT_EQ(at(4 + 24, 99), 200);
  EXPECT_EQ(at(4 + 24, 100), 236);
  EXPECT_EQ(at(4 + 24, 104), 100);
  EXPECT_EQ(at(4 + 71, 104), 100);
  EXPECT_EQ(at(4 + 72, 104), 236);
  EXPECT_EQ(at(4 + 48, 204), 236);
  // The second class has a broken image alone, drawn in red.
  EXPECT_EQ(at(104 + 48, 4), 200);
  EXPECT_EQ(at(104 + 48, 104), 236);
}

TEST(ContactSheet, SpreadsItsRowsOverManyClasses) {
  ShownSamples samples;
  samples.by_class.resize(25);
  EXPECT_THAT(sheet_rows(samples),
              testing::ElementsAre(0, 2, 5, 7, 10, 12, 15, 17, 20, 22));
  samples.by_class.resize(3);
  EXPECT_THAT(sheet_rows(samples), testing::ElementsAre(0, 1, 2));
}

// As /dev/stdout of `>> log`.
TEST_F(ShowDataTest, RefusesToReplaceAnOpenFile) {
  fs::create_directory(root());
  const FileDescriptor log(
      ::open((directory_ / "log").c_str(), O_CREAT | O_WRONLY, 0600));
  ShowDataOptions shown = options();
  shown.json = "/dev/fd/" + std::to_string(log.get());
  EXPECT_THAT(usage_error(shown),
              AllOf(HasSubstr("--json"), HasSubstr("an open file")));
}

TEST_F(ShowDataTest, RefusesWhatCannotBeInOneLine) {
  EXPECT_THAT(usage_error({}), HasSubstr("show needs a dataset"));
  EXPECT_THAT(usage_error({.data = "mnits"}),
              AllOf(HasSubstr("there is no folder \"mnits\""),
                    HasSubstr("did you mean \"mnist\"?")));
  fs::create_directory(root());
  ShowDataOptions folder = options();
  folder.data_dir = "x";
  EXPECT_THAT(usage_error(folder), HasSubstr("--data-dir"));
  folder = options();
  folder.augment = "hflip";
  EXPECT_THAT(usage_error(folder), HasSubstr("give --contact-sheet"));
  folder.contact_sheet = "sheet.jpg";
  EXPECT_THAT(usage_error(folder), HasSubstr("--contact-sheet"));
  folder.contact_sheet = "/none/sheet.png";
  EXPECT_THAT(usage_error(folder), HasSubstr("there is no folder /none"));
  folder.augment = "hflop";
  EXPECT_THAT(usage_error(folder),
              AllOf(HasSubstr("--augment: "), HasSubstr("hflip")));
  folder = options();
  folder.json = "/none/report.json";
  EXPECT_THAT(usage_error(folder), HasSubstr("--json"));
  add("train/cat/a.png");
  for (std::string ShowDataOptions::*output :
       {&ShowDataOptions::json, &ShowDataOptions::contact_sheet}) {
    folder = options();
    folder.*output = (root() / "train/cat/a.png").string();
    EXPECT_THAT(usage_error(folder), HasSubstr("overwrite a file of the data"));
  }
}

}  // namespace
}  // namespace lockstep
