// Where the files of the known datasets are, and how a downloaded file is
// recognised.
//
// The checksums of files are those that torchvision's mnist.py and
// https://www.cs.toronto.edu/~kriz/cifar.html give. Those of contents serve for
// files that a mirror compressed anew, as Debian's dataset-fashion-mnist does.
// MD5 is what these sources publish. It recognises a damaged file, not a forged
// one.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

struct KnownFile {
  std::string_view name;
  std::uint64_t bytes = 0;
  std::string_view md5;  // "": only its size is known
};

enum class Packing { kGzip, kTarGzip };

struct KnownDownload {
  std::string_view name;  // of the dataset, as known_datasets.h has it
  std::string_view base;  // the address of the folder of `files`
  Packing packing = Packing::kGzip;
  std::span<const KnownFile> files;
  // The files that training reads: of kGzip what is in each of `files`, of
  // kTarGzip what lies in the archive's folder, KnownDataset::folder.
  std::span<const KnownFile> contents;
};

namespace known_downloads_internal {

inline constexpr std::array kMnistFiles{
    KnownFile{"train-images-idx3-ubyte.gz", 9'912'422,
              "f68b3c2dcbeaaa9fbdd348bbdeb94873"},
    KnownFile{"train-labels-idx1-ubyte.gz", 28'881,
              "d53e105ee54ea40749a09fcbcd1e9432"},
    KnownFile{"t10k-images-idx3-ubyte.gz", 1'648'877,
              "9fb629c4189551a2d022fa330f9573f3"},
    KnownFile{"t10k-labels-idx1-ubyte.gz", 4'542,
              "ec29112dd5afa0611ce80d1b7f02629c"}};
inline constexpr std::array kMnistContents{
    KnownFile{"train-images-idx3-ubyte", 47'040'016,
              "6bbc9ace898e44ae57da46a324031adb"},
    KnownFile{"train-labels-idx1-ubyte", 60'008,
              "a25bea736e30d166cdddb491f175f624"},
    KnownFile{"t10k-images-idx3-ubyte", 7'840'016,
              "2646ac647ad5339dbf082846283269ea"},
    KnownFile{"t10k-labels-idx1-ubyte", 10'008,
              "27ae3e4e09519cfbb04c329615203637"}};

inline constexpr std::array kFashionFiles{
    KnownFile{"train-images-idx3-ubyte.gz", 26'421'880,
              "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
    KnownFile{"train-labels-idx1-ubyte.gz", 29'515,
              "25c81989df183df01b3e8a0aad5dffbe"},
    KnownFile{"t10k-images-idx3-ubyte.gz", 4'422'102,
              "bef4ecab320f06d8554ea6380940ec79"},
    KnownFile{"t10k-labels-idx1-ubyte.gz", 5'148,
              "bb300cfdad3c16e7a12a480ee83cd310"}};
inline constexpr std::array kFashionContents{
    KnownFile{"train-images-idx3-ubyte", 47'040'016,
              "f4a8712d7a061bf5bd6d2ca38dc4d50a"},
    KnownFile{"train-labels-idx1-ubyte", 60'008,
              "9018921c3c673c538a1fc5bad174d6f9"},
    KnownFile{"t10k-images-idx3-ubyte", 7'840'016,
              "8181f5470baa50b63fa0f6fddb340f0a"},
    KnownFile{"t10k-labels-idx1-ubyte", 10'008,
              "15d484375f8d13e6eb1aabb0c3f46965"}};

inline constexpr std::array kCifar10Files{KnownFile{
    "cifar-10-binary.tar.gz", 170'052'171, "c32a1d4ab5d03f1284b67883e8d87530"}};
inline constexpr std::array kCifar10Contents{
    KnownFile{"data_batch_1.bin", 30'730'000, ""},
    KnownFile{"data_batch_2.bin", 30'730'000, ""},
    KnownFile{"data_batch_3.bin", 30'730'000, ""},
    KnownFile{"data_batch_4.bin", 30'730'000, ""},
    KnownFile{"data_batch_5.bin", 30'730'000, ""},
    KnownFile{"test_batch.bin", 30'730'000, ""}};

inline constexpr std::array kCifar100Files{
    KnownFile{"cifar-100-binary.tar.gz", 168'513'733,
              "03b5dce01913d631647c71ecec9e9cb8"}};
inline constexpr std::array kCifar100Contents{
    KnownFile{"train.bin", 153'700'000, ""},
    KnownFile{"test.bin", 30'740'000, ""}};

inline constexpr std::string_view kToronto =
    "https://www.cs.toronto.edu/~kriz/";

}  // namespace known_downloads_internal

inline constexpr std::array kDownloads{
    KnownDownload{
        .name = "fashion-mnist",
        .base = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        .packing = Packing::kGzip,
        .files = known_downloads_internal::kFashionFiles,
        .contents = known_downloads_internal::kFashionContents},
    KnownDownload{.name = "mnist",
                  .base = "https://ossci-datasets.s3.amazonaws.com/mnist/",
                  .packing = Packing::kGzip,
                  .files = known_downloads_internal::kMnistFiles,
                  .contents = known_downloads_internal::kMnistContents},
    KnownDownload{.name = "cifar10",
                  .base = known_downloads_internal::kToronto,
                  .packing = Packing::kTarGzip,
                  .files = known_downloads_internal::kCifar10Files,
                  .contents = known_downloads_internal::kCifar10Contents},
    KnownDownload{.name = "cifar100",
                  .base = known_downloads_internal::kToronto,
                  .packing = Packing::kTarGzip,
                  .files = known_downloads_internal::kCifar100Files,
                  .contents = known_downloads_internal::kCifar100Contents}};

}  // namespace lockstep
