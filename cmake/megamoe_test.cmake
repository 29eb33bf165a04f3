# Functions that register tests with ctest; a test without a known label is a configure error, so none is left unrun.
include(GoogleTest)

set(megamoe_test_labels unit contract protocol golden compile_fail)

function(megamoe_check_labels name labels)
  if(NOT labels)
    message(FATAL_ERROR "test ${name}: LABELS is missing; use some of: ${megamoe_test_labels}")
  endif()
  foreach(label IN LISTS labels)
    if(NOT label IN_LIST megamoe_test_labels)
      message(FATAL_ERROR "test ${name}: unknown label '${label}'; use some of: ${megamoe_test_labels}")
    endif()
  endforeach()
endfunction()

# megamoe_add_test(NAME <name> SOURCES <files> LINKS <targets> LABELS <labels>
#                  [DEFINES <NAME=value>...] [TIMEOUT <seconds>] [WORKING_DIRECTORY <dir>])
# One GoogleTest program; each of its cases becomes one ctest case named <name>.<suite>.<case>.
# It runs in the source root unless stated, so that fixtures are found as tests/fixtures/...
function(megamoe_add_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT;WORKING_DIRECTORY" "SOURCES;LINKS;LABELS;DEFINES" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES)
    message(FATAL_ERROR "megamoe_add_test needs NAME and SOURCES and takes no '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  megamoe_check_labels(${arg_NAME} "${arg_LABELS}")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_WORKING_DIRECTORY)
    set(arg_WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  endif()

  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE megamoe_options ${arg_LINKS} GTest::gmock GTest::gtest GTest::gtest_main)
  # Half the compile time of -O3; the libraries under test keep their own level.
  target_compile_options(${arg_NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_compile_definitions(${arg_NAME} PRIVATE
    MEGAMOE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MEGAMOE_BINARY_DIR="${PROJECT_BINARY_DIR}" ${arg_DEFINES})
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

  # tests_protocol and its like build one kind only.
  foreach(label IN LISTS arg_LABELS)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${arg_NAME})
  endforeach()

  # gtest_discover_tests flattens lists, so several labels are joined; ctest -L matches inside the joined word.
  string(JOIN "," labels ${arg_LABELS})
  gtest_discover_tests(${arg_NAME}
    TEST_PREFIX ${arg_NAME}.
    WORKING_DIRECTORY ${arg_WORKING_DIRECTORY}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${labels} TIMEOUT ${arg_TIMEOUT})
endfunction()

# megamoe_add_script_test(NAME <name> COMMAND <words...> LABELS <labels> [TIMEOUT <seconds>])
# Any program that exits 0 when it passed and 77 when it had to skip; its last line is then the reason.
# scripts/test.sh puts MEGAMOE_PYTHON, a Python with the packages of scripts/requirements.txt, into its environment.
function(megamoe_add_script_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "COMMAND;LABELS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_COMMAND)
    message(FATAL_ERROR "megamoe_add_script_test needs NAME and COMMAND and takes no '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  megamoe_check_labels(${arg_NAME} "${arg_LABELS}")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  string(JOIN "," labels ${arg_LABELS})
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${arg_NAME} PROPERTIES
    LABELS ${labels} TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT MEGAMOE_BINARY_DIR=${PROJECT_BINARY_DIR})
endfunction()

# megamoe_add_compile_fail_test(NAME <name> SOURCE <file> EXPECT <regex>)
# The file must compile as it is, and must be refused with a message that matches <regex> when MEGAMOE_MUST_FAIL is defined.
function(megamoe_add_compile_fail_test)
  cmake_parse_arguments(arg "" "NAME;SOURCE;EXPECT" "" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCE OR NOT arg_EXPECT)
    message(FATAL_ERROR "megamoe_add_compile_fail_test needs NAME, SOURCE and EXPECT")
  endif()
  cmake_path(ABSOLUTE_PATH arg_SOURCE BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  add_test(NAME compile_fail.${arg_NAME}
    COMMAND ${CMAKE_COMMAND} -DCOMPILER=${CMAKE_CXX_COMPILER} -DROOT=${PROJECT_SOURCE_DIR} -DSOURCE=${arg_SOURCE}
            -DEXPECT=${arg_EXPECT} -P ${PROJECT_SOURCE_DIR}/cmake/compile_fail.cmake)
  set_tests_properties(compile_fail.${arg_NAME} PROPERTIES LABELS compile_fail TIMEOUT 120)
endfunction()
