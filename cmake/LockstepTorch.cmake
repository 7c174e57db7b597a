# Finds LibTorch by full path and declares lockstep::libtorch.
#
# LOCKSTEP_TORCH names a folder with include/ and lib/ (a LibTorch archive, or
# the torch package of a Python); `./dev` sets it. Without it the folder comes from
# the environment variable of this name, from an earlier find_package(Torch), from
# CMAKE_PREFIX_PATH, or from python3's torch. This file does not use CMake's own
# search: where several LibTorchs are installed it mixes their libraries. The
# installed package finds LibTorch with this same file.
function(lockstep_find_torch result)
  set(candidates "${TORCH_INSTALL_PREFIX}" ${CMAKE_PREFIX_PATH})
  # torch.utils.cmake_prefix_path is share/cmake in the package.
  list(TRANSFORM CMAKE_PREFIX_PATH APPEND "/../.." OUTPUT_VARIABLE above)
  find_program(LOCKSTEP_PYTHON3 python3)
  mark_as_advanced(LOCKSTEP_PYTHON3)
  if(LOCKSTEP_PYTHON3)
    # Does not import torch, which takes a second.
    execute_process(
      COMMAND
        "${LOCKSTEP_PYTHON3}" -c
        "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  foreach(candidate ${candidates} ${above} ${package})
    if(EXISTS "${candidate}/lib/libtorch_cpu.so")
      cmake_path(NORMAL_PATH candidate)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Keeps a variable of the caller: before CMake 3.21's policies, a cache variable
# would replace it.
if(NOT LOCKSTEP_TORCH)
  set(lockstep_torch "$ENV{LOCKSTEP_TORCH}")
  if(NOT lockstep_torch)
    lockstep_find_torch(lockstep_torch)
  endif()
  set(LOCKSTEP_TORCH "${lockstep_torch}" CACHE PATH "Folder of LibTorch" FORCE)
endif()
if(NOT EXISTS "${LOCKSTEP_TORCH}/lib/libtorch_cpu.so")
  message(
    FATAL_ERROR
      "No LibTorch at LOCKSTEP_TORCH=\"${LOCKSTEP_TORCH}\" (expected "
      "lib/libtorch_cpu.so there).\n  next: pass "
      "-DLOCKSTEP_TORCH=/path/to/libtorch, or have a python3 with torch on the "
      "path; in Lockstep's own folder ./dev build finds or installs one")
endif()

# Before 2.9 another header has the version; those versions are too old anyway.
set(LOCKSTEP_TORCH_VERSION "before 2.9")
set(lockstep_torch_header
    "${LOCKSTEP_TORCH}/include/torch/headeronly/version.h")
if(EXISTS "${lockstep_torch_header}")
  file(STRINGS "${lockstep_torch_header}" lockstep_torch_lines
       REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" lockstep_torch_numbers
               "${lockstep_torch_lines}")
  list(JOIN lockstep_torch_numbers "." LOCKSTEP_TORCH_VERSION)
endif()
if(NOT LOCKSTEP_TORCH_VERSION VERSION_GREATER_EQUAL 2.11)
  message(FATAL_ERROR "LibTorch ${LOCKSTEP_TORCH_VERSION} at ${LOCKSTEP_TORCH} "
                      "is too old: Lockstep needs 2.11 or newer.")
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION}: ${LOCKSTEP_TORCH}")

# Imported, so that an exported layer names it instead of exporting its paths.
add_library(lockstep::libtorch INTERFACE IMPORTED GLOBAL)
target_include_directories(
  lockstep::libtorch SYSTEM
  INTERFACE "${LOCKSTEP_TORCH}/include"
            "${LOCKSTEP_TORCH}/include/torch/csrc/api/include")
# No code calls libtorch.so, but it loads CUDA where LibTorch has CUDA, and
# compilers omit such libraries (--as-needed).
#
# libstdc++ comes first: LibTorch's libraries export parts of another libstdc++,
# and where a program finds those first, std::filesystem::remove_all() calls a
# null pointer (seen with LibTorch 2.11 for CUDA 13).
target_link_libraries(
  lockstep::libtorch
  INTERFACE
    "-Wl,--push-state,--no-as-needed,-lstdc++,--pop-state"
    "-Wl,--push-state,--no-as-needed,${LOCKSTEP_TORCH}/lib/libtorch.so,--pop-state"
            "${LOCKSTEP_TORCH}/lib/libtorch_cpu.so"
            "${LOCKSTEP_TORCH}/lib/libc10.so")
# The libraries that LibTorch's CUDA part needs may exist only where programs run,
# and not here.
if(EXISTS "${LOCKSTEP_TORCH}/lib/libtorch_cuda.so")
  target_link_options(lockstep::libtorch INTERFACE
                      "LINKER:--allow-shlib-undefined")
endif()
