# Writes the file of ctest's tests for a GoogleTest program whose suites each run
# in one process; see LockstepLayer.cmake (TESTS_SHARE_PROCESSES).
#
#   cmake -D PROGRAM=… -D FILE=… -D LABEL=… -P discover_suites.cmake
execute_process(COMMAND "${PROGRAM}" --gtest_list_tests TIMEOUT 60
                OUTPUT_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} does not list its tests (${result}):\n${output}")
endif()
string(REGEX REPLACE "[[;]|\\]" "" output "${output}")
string(REPLACE "\n" ";" lines "${output}")
set(script)
foreach(line ${lines})
  # "Suite." or "Instance/Suite.", and "Suite/0.  # TypeParam = float"
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.( +#.*)?$")
    set(suite "${CMAKE_MATCH_1}")
    string(APPEND script
           "add_test(\"${suite}\" \"${PROGRAM}\" \"--gtest_filter=${suite}.*\")\n"
           "set_tests_properties(\"${suite}\" PROPERTIES TIMEOUT 600 LABELS"
           " \"${LABEL};unit\")\n")
  endif()
endforeach()
file(WRITE "${FILE}" "${script}")
