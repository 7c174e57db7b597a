# CMake functions for layers, programs and fuzz targets.
#
#   lockstep_layer(NAME [USES layer…] [LIBRARIES library…] [TESTS_SHARE_PROCESSES])
#     Declares the layer in the current folder: target lockstep_NAME, alias
#     lockstep::NAME, installed and exported with its public headers, which are
#     include/lockstep/NAME/*.h. The names of files select their use:
#       *_test.cc    go into the GoogleTest program lockstep_NAME_test
#       *_fuzz.cc    are one libFuzzer target each, run briefly as a test
#       *_bench.cc, *_main.cc   are separate programs, which other CMake lists
#                    declare
#       testing/*    is linked to the tests of this layer and those above it,
#                    and to the layer's fuzz targets, except *_library.cc,
#                    which tests load
#       other files  are the library
#     A folder below with a CMake list of its own is another layer.
#     USES names the layers that this one may include; scripts/check_layers
#     compares them with the table in docs/design/architecture.md.
#     Each test runs in a process of its own, since tests fork, send signals and
#     end processes; their label is `process`. With TESTS_SHARE_PROCESSES the tests
#     of a suite run in one process, for a program that includes LibTorch takes half
#     a second to start; their label is `unit`.
#     LIBRARIES stay private, except lockstep::libtorch; the installed layer names
#     their files. The target NAME_tests builds the layer's tests.
#
#   lockstep_program(TARGET SOURCE layer…)
#     Declares an installed program; the target `lockstep_programs`
#     builds them all.
#
#   lockstep_use_torch(TARGET)
#     Lets any other target include LibTorch: links it and shares the
#     precompiled header.

add_library(lockstep_flags INTERFACE)
# Everything that is built here may include "src/…"; users get include/ alone.
target_include_directories(lockstep_flags INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra -Wshadow
                                                -Wnon-virtual-dtor)
target_compile_options(
  lockstep_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
# GCC 12 reports copies of impossible sizes inside std::string once a release build
# inlines across files (its bug 105651). The other builds keep these warnings.
target_compile_options(
  lockstep_flags
  INTERFACE
    "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-restrict;-Wno-stringop-overflow>"
)
if(LOCKSTEP_SANITIZE)
  list(JOIN LOCKSTEP_SANITIZE "," lockstep_sanitizers)
  target_compile_options(
    lockstep_flags INTERFACE -fsanitize=${lockstep_sanitizers}
                             -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(lockstep_flags INTERFACE
                      -fsanitize=${lockstep_sanitizers})
  if("undefined" IN_LIST LOCKSTEP_SANITIZE)
    # Its check of objects' types opens descriptors, and some tests leave none.
    target_compile_options(lockstep_flags INTERFACE -fno-sanitize=vptr)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND "address" IN_LIST
                                                LOCKSTEP_SANITIZE)
    # Shows libFuzzer which paths through a layer an input takes.
    target_compile_options(lockstep_flags INTERFACE -fsanitize=fuzzer-no-link)
  endif()
endif()

add_custom_target(lockstep_programs)

function(lockstep_use_torch target)
  # One precompiled header for all: a file that includes LibTorch takes 10 to
  # 18 s without it.
  if(NOT TARGET lockstep_torch_pch)
    set(source "${PROJECT_BINARY_DIR}/torch_pch.cc")
    file(GENERATE OUTPUT "${source}" CONTENT "// Carries the header.\n")
    add_library(lockstep_torch_pch OBJECT "${source}")
    target_link_libraries(lockstep_torch_pch PRIVATE lockstep::libtorch
                                                     lockstep_flags)
    target_precompile_headers(lockstep_torch_pch PRIVATE <torch/torch.h>)
    # Without this flag ccache does not know with which header a file was compiled.
    target_compile_options(lockstep_torch_pch
                           PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
  target_link_libraries(${target} PRIVATE lockstep::libtorch)
  target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch)
  target_compile_options(${target}
                         PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  # Of those 10 s per file, reading the header takes 5 to 6: files that are
  # compiled as one read it once.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY}
                                             UNITY_BUILD_BATCH_SIZE 10)
endfunction()

# lockstep_library_files(RESULT library…): the files that a linker needs of these
# libraries. An installed layer names them, so that its users need neither the
# libraries' CMake packages nor their headers: a shared library by its soname, the
# name that programs load, which exists without the library's -dev package.
function(lockstep_library_files result)
  set(files)
  list(REMOVE_ITEM ARGN lockstep::libtorch)
  foreach(library ${ARGN})
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" file "${library}")
    set(others)
    if(TARGET ${file})
      get_target_property(others ${file} INTERFACE_LINK_LIBRARIES)
      get_target_property(type ${file} TYPE)
      if(type STREQUAL "INTERFACE_LIBRARY")
        set(file)
      else()
        get_target_property(file ${file} LOCATION)
      endif()
    endif()
    if(file MATCHES "\\.so")
      set(others)  # it names them itself
      execute_process(COMMAND "${CMAKE_READELF}" -d "${file}"
                      OUTPUT_VARIABLE entries ERROR_QUIET)
      cmake_path(GET file PARENT_PATH folder)
      if(entries MATCHES "SONAME[^[]*\\[([^]]+)\\]"
         AND EXISTS "${folder}/${CMAKE_MATCH_1}")
        set(file "${folder}/${CMAKE_MATCH_1}")
      endif()
    endif()
    list(APPEND files ${file})
    if(others)
      lockstep_library_files(others ${others})
      list(APPEND files ${others})
    endif()
  endforeach()
  set(${result} "${files}" PARENT_SCOPE)
endfunction()

# lockstep_any_uses_torch(RESULT layer…): whether one of the layers needs LibTorch.
function(lockstep_any_uses_torch result)
  set(${result} FALSE PARENT_SCOPE)
  foreach(layer ${ARGN})
    get_target_property(needs_torch lockstep_${layer} LOCKSTEP_NEEDS_TORCH)
    if(needs_torch)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(lockstep_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "TESTS_SHARE_PROCESSES" ""
                        "USES;LIBRARIES")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "*.cc")
  file(GLOB_RECURSE internal CONFIGURE_DEPENDS "*.h")
  list(FILTER internal EXCLUDE REGEX "/(testing|plugin)/|_test\\.h$")
  file(GLOB others CONFIGURE_DEPENDS "*/CMakeLists.txt")
  foreach(other ${others})
    cmake_path(GET other PARENT_PATH folder)
    list(FILTER sources EXCLUDE REGEX "^${folder}/")
    list(FILTER internal EXCLUDE REGEX "^${folder}/")
  endforeach()
  set(include "${PROJECT_SOURCE_DIR}/include")
  file(GLOB public CONFIGURE_DEPENDS "${include}/lockstep/${name}/*.h")
  set(tests ${sources})
  set(fuzzers ${sources})
  set(testing ${sources})
  list(FILTER sources EXCLUDE
       REGEX "(_(test|bench|fuzz|main)\\.cc|/(testing|plugin)/.*)$")
  list(FILTER testing INCLUDE REGEX "/testing/.*\\.cc$")
  list(FILTER testing EXCLUDE REGEX "_(test|fuzz|main|library)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER tests EXCLUDE REGEX "/plugin/")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")

  set(target lockstep_${name})
  set(needs_torch FALSE)
  lockstep_any_uses_torch(below ${layer_USES})
  if("lockstep::libtorch" IN_LIST layer_LIBRARIES OR below)
    set(needs_torch TRUE)
  endif()
  add_library(${target} STATIC ${sources})
  add_library(lockstep::${name} ALIAS ${target})
  set_property(TARGET ${target} PROPERTY LOCKSTEP_NEEDS_TORCH ${needs_torch})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${include}" FILES
                                  ${public})
  list(TRANSFORM layer_USES PREPEND lockstep_)
  lockstep_library_files(files ${layer_LIBRARIES})
  set_property(TARGET ${target} PROPERTY LOCKSTEP_FILES ${files})
  list(TRANSFORM files REPLACE "(.+)" "$<INSTALL_INTERFACE:\\1>")
  list(TRANSFORM layer_LIBRARIES REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>"
                                 OUTPUT_VARIABLE libraries)
  target_link_libraries(
    ${target} PUBLIC ${layer_USES} PRIVATE $<BUILD_INTERFACE:lockstep_flags>
                                           ${libraries} ${files})
  if(needs_torch)
    target_link_libraries(${target} PUBLIC lockstep::libtorch)
    lockstep_use_torch(${target})
  endif()
  # Not installed: lets CMake compile the other headers on their own too.
  add_library(${target}_internal INTERFACE)
  target_sources(${target}_internal INTERFACE FILE_SET HEADERS BASE_DIRS
                                    "${PROJECT_SOURCE_DIR}" FILES ${internal})
  target_link_libraries(${target}_internal INTERFACE ${target} lockstep_flags)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LAYERS ${name})

  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  add_custom_target(${name}_tests)
  if(testing)
    add_library(${target}_testing STATIC ${testing})
    target_link_libraries(${target}_testing PUBLIC ${target} GTest::gmock
                          PRIVATE lockstep_flags ${layer_LIBRARIES})
    set(testing_of LOCKSTEP_TESTING)
    if(needs_torch)
      lockstep_use_torch(${target}_testing)
      set(testing_of LOCKSTEP_TESTING_WITH_TORCH)
    endif()
    set_property(GLOBAL APPEND PROPERTY ${testing_of} ${target}_testing)
  endif()
  if(tests)
    get_property(testing_libraries GLOBAL PROPERTY LOCKSTEP_TESTING)
    if(needs_torch)
      get_property(with_torch GLOBAL PROPERTY LOCKSTEP_TESTING_WITH_TORCH)
      list(PREPEND testing_libraries ${with_torch})
    endif()
    add_executable(${target}_test ${tests})
    target_link_libraries(
      ${target}_test PRIVATE ${testing_libraries} ${target} lockstep_flags
                             ${layer_LIBRARIES} GTest::gmock GTest::gtest_main)
    if(needs_torch)
      lockstep_use_torch(${target}_test)
    endif()
    add_dependencies(${name}_tests ${target}_test)
    if(layer_TESTS_SHARE_PROCESSES)
      lockstep_discover_suites(${target}_test ${name})
    else()
      gtest_discover_tests(${target}_test DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
                           PROPERTIES TIMEOUT 600)
      # That function cannot set a list of labels.
      set(labels "${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake")
      file(WRITE "${labels}"
           "foreach(test IN LISTS ${target}_test_TESTS)\n"
           "  set_tests_properties(\"\${test}\" PROPERTIES LABELS \"${name};process\")\n"
           "endforeach()\n")
      set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${labels}")
    endif()
  endif()
  foreach(source ${fuzzers})
    lockstep_fuzzer(${name} "${source}" ${layer_LIBRARIES})
  endforeach()
endfunction()

# lockstep_discover_suites(TARGET LABEL): one test for each suite of a GoogleTest
# program, listed when the program has been built.
function(lockstep_discover_suites target label)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake")
  set(include_file "${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake")
  add_custom_command(
    TARGET ${target} POST_BUILD BYPRODUCTS "${file}"
    COMMAND "${CMAKE_COMMAND}" -D PROGRAM=$<TARGET_FILE:${target}>
            -D FILE=${file} -D LABEL=${label} -P
            "${PROJECT_SOURCE_DIR}/cmake/discover_suites.cmake"
    VERBATIM)
  file(WRITE "${include_file}"
       "if(EXISTS \"${file}\")\n  include(\"${file}\")\nelse()\n"
       "  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include_file}")
endfunction()

# lockstep_fuzzer(LAYER SOURCE library…): the program lockstep_STEM, where STEM
# is the file's name, and a test that runs it briefly. Only clang has libFuzzer;
# with another compiler a small driver feeds the target random bytes instead.
function(lockstep_fuzzer layer source)
  cmake_path(GET source STEM stem)
  set(target lockstep_${stem})
  add_executable(${target} "${source}")
  target_link_libraries(
    ${target} PRIVATE $<TARGET_NAME_IF_EXISTS:lockstep_${layer}_testing>
                      lockstep_${layer} lockstep_flags ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/fuzz_driver.cc")
  endif()
  add_dependencies(${layer}_tests ${target})
  add_test(NAME ${stem} COMMAND ${target} -runs=50000 -max_total_time=20)
  set_tests_properties(${stem} PROPERTIES TIMEOUT 300 LABELS "${layer};fuzz")
endfunction()

function(lockstep_program target source)
  add_executable(${target} ${source})
  list(TRANSFORM ARGN PREPEND lockstep:: OUTPUT_VARIABLE layers)
  target_link_libraries(${target} PRIVATE ${layers} lockstep_flags)
  lockstep_any_uses_torch(needs_torch ${ARGN})
  if(needs_torch)
    lockstep_use_torch(${target})
    # Explicit, since CMake omits folders inside the build folder, where `./dev`
    # has its LibTorch. LD_LIBRARY_PATH comes first.
    set_target_properties(${target} PROPERTIES INSTALL_RPATH
                                               "${LOCKSTEP_TORCH}/lib")
  endif()
  add_dependencies(lockstep_programs ${target})
  # In one folder, as when installed: the command looks for its companions there.
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                             "${PROJECT_BINARY_DIR}/bin")
  install(TARGETS ${target} RUNTIME)
endfunction()
