# Finds LibTorch by full path and declares lockstep::libtorch.
#
# LOCKSTEP_TORCH names a folder with include/ and lib/ (a LibTorch archive, or
# the torch package of a Python); `./dev` sets it. CMake's own search is not
# used: where several LibTorchs are installed it mixes their libraries.
set(LOCKSTEP_TORCH "$ENV{LOCKSTEP_TORCH}" CACHE PATH "Folder of LibTorch")
if(NOT EXISTS "${LOCKSTEP_TORCH}/lib/libtorch_cpu.so")
  message(
    FATAL_ERROR
      "No LibTorch at LOCKSTEP_TORCH=\"${LOCKSTEP_TORCH}\" (expected "
      "lib/libtorch_cpu.so there).\n  next: run ./dev build, which finds or "
      "installs one; or pass -DLOCKSTEP_TORCH=/path/to/libtorch")
endif()

file(STRINGS "${LOCKSTEP_TORCH}/include/torch/headeronly/version.h"
     lockstep_torch_lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" lockstep_torch_numbers
             "${lockstep_torch_lines}")
list(JOIN lockstep_torch_numbers "." LOCKSTEP_TORCH_VERSION)
if(LOCKSTEP_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${LOCKSTEP_TORCH_VERSION} at ${LOCKSTEP_TORCH} "
                      "is too old: Lockstep needs 2.11 or newer.")
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION}: ${LOCKSTEP_TORCH}")

add_library(lockstep_libtorch INTERFACE)
add_library(lockstep::libtorch ALIAS lockstep_libtorch)
target_include_directories(
  lockstep_libtorch SYSTEM
  INTERFACE "${LOCKSTEP_TORCH}/include"
            "${LOCKSTEP_TORCH}/include/torch/csrc/api/include")
target_link_libraries(
  lockstep_libtorch
  INTERFACE "${LOCKSTEP_TORCH}/lib/libtorch.so"
            "${LOCKSTEP_TORCH}/lib/libtorch_cpu.so"
            "${LOCKSTEP_TORCH}/lib/libc10.so")
target_link_options(lockstep_libtorch INTERFACE
                    "LINKER:-rpath,${LOCKSTEP_TORCH}/lib")
